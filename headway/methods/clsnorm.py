"""clsnorm: normalised classifier rows (No Fear of Heterogeneity, Luo et al., 2021, Table 1)."""

from __future__ import annotations

from headway.core import Note, Piece, Setup
from headway.methods.parts.logits import bounded_logits


class ClsNorm(Piece):
    """z_c = w_c . h / ||w_c||, in training and inference; the stored w_c is unnormalised, shared and averaged."""

    name, slot, paper = "clsnorm", "head", "luo2021ccvr"

    def requires(self) -> set[str]:
        return {"trained classifier"}

    def check(self, setup: Setup) -> list[str]:
        return bounded_logits(setup.recipe)

    def head(self) -> Note:
        return {"wnorm": "unit", "bias": False}
