"""SphereFed: Hyperspherical Federated Learning (Dong et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.errors import WidthError
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.recipes import Recipe


@dataclass(frozen=True)
class Sphere(Piece):
    """z = tau W h/||h||, with W's rows orthonormal and frozen."""

    name, slot, paper = "sphere", "head", "dong2022spherefed"
    tau: float = setting(1.0, "tau, scale of the logits", gt=0)

    def head(self) -> dict[str, Any]:
        return {"feat": "l2", "weights": "frozen_orth", "wnorm": "unit", "scale": self.tau, "bias": False}

    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        if dim < classes:
            raise WidthError(
                f"sphere: {classes} orthonormal class vectors need at least {classes} features and the body gives "
                f"{dim}; use a wider body, or `etfproj`, which projects first"
            )
