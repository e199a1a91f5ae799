"""SphereFed: Hyperspherical Federated Learning (Dong et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import WidthError
from headway.core import Note, Piece, Setup, setting


@dataclass(frozen=True)
class Sphere(Piece):
    """z = tau W h/||h||, with W's rows orthonormal and frozen."""

    name, slot, paper = "sphere", "head", "dong2022spherefed"
    tau: float = setting(1.0, "tau, scale of the logits", gt=0)

    def head(self) -> Note:
        return {"feat": "l2", "weights": "frozen_orth", "wnorm": "unit", "scale": self.tau, "bias": False}

    def check(self, setup: Setup) -> list[str]:
        d, C = setup.dim, setup.classes
        if d < C:
            raise WidthError(
                f"sphere: {C} orthonormal class vectors need at least {C} features and the body gives {d}; "
                f"use a wider body, or `etfproj`, which projects first"
            )
        return []
