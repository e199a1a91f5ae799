"""The cosine classifier: unit features and unit rows under a fixed scale; the sum of fn and clsnorm."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Note, Piece, setting


@dataclass(frozen=True)
class Cosine(Piece):
    """z_c = tau cos(w_c, h). Logits within [-tau, tau]: a tau of 1 underfits (FedFN, D.4)."""

    name, slot, paper = "cosine", "head", "kim2023fedfn"
    tau: float = setting(10.0, "tau, scale of the logits", gt=0)

    def requires(self) -> set[str]:
        return {"trained classifier"}

    def head(self) -> Note:
        return {"feat": "l2", "wnorm": "unit", "scale": self.tau, "bias": False}
