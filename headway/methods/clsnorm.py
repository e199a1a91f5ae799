"""clsnorm: normalised classifier rows (No Fear of Heterogeneity, Luo et al., 2021, Table 1)."""

from typing import Any

from headway.piece import Piece


class ClsNorm(Piece):
    """z_c = w_c . h / ||w_c||, in training and inference; the stored w_c is unnormalised, shared and averaged."""

    name, slot, paper, moves_classifier = "clsnorm", "head", "luo2021ccvr", True

    def head(self) -> dict[str, Any]:
        return {"wnorm": "unit", "bias": False}
