"""The cosine classifier: unit features and unit rows under a fixed scale; the sum of fn and clsnorm."""

from dataclasses import dataclass
from typing import Any

from headway.piece import Piece, setting


@dataclass(frozen=True)
class Cosine(Piece):
    """z_c = tau cos(w_c, h). Logits within [-tau, tau]: a tau of 1 underfits (FedFN, D.4)."""

    name, slot, paper, moves_classifier = "cosine", "head", "kim2023fedfn", True
    tau: float = setting(10.0, "tau, scale of the logits", gt=0)

    def head(self) -> dict[str, Any]:
        return {"feat": "l2", "wnorm": "unit", "scale": self.tau, "bias": False}
