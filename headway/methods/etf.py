"""FedAvg_ETF: Neural Collapse Inspired Federated Learning with Non-iid Data (Huang et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import WidthError
from headway.core import Note, Piece, Setup, setting
from headway.methods.parts.logits import bounded_logits


@dataclass(frozen=True)
class ETF(Piece):
    """A fixed simplex classifier for everybody. The paper never defines beta_E; here it is every row's norm."""

    name, slot, paper = "etf", "head", "huang2023etf"
    scale: float = setting(1.0, "beta_E, the norm of every class vector", gt=0, also="beta_e")

    def head(self) -> Note:  # z_c = beta_E v_c . h, v_c frozen
        return {"weights": "frozen_etf", "wnorm": "unit", "scale": self.scale, "bias": False}

    def check(self, setup: Setup) -> list[str]:
        d, C = setup.dim, setup.classes
        if d < C - 1:
            raise WidthError(
                f"etf: {C} classes need at least {C - 1} features and the body gives {d}; "
                f"use `etfproj`, which projects first, or a wider body"
            )
        return bounded_logits(setup.recipe)
