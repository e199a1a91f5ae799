"""FedAvg_ETF: Neural Collapse Inspired Federated Learning with Non-iid Data (Huang et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.errors import WidthError
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.recipes import Recipe


@dataclass(frozen=True)
class ETF(Piece):
    """A fixed simplex classifier for everybody. The paper never defines beta_E; here it is every row's norm."""

    name, slot, paper = "etf", "head", "huang2023etf"
    also = {"beta_e": "scale"}  # noqa: RUF012
    scale: float = setting(1.0, "beta_E, the norm of every class vector", gt=0)

    def head(self) -> dict[str, Any]:  # z_c = beta_E v_c . h, v_c frozen
        return {"weights": "frozen_etf", "wnorm": "unit", "scale": self.scale, "bias": False}

    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        if dim < classes - 1:
            raise WidthError(
                f"etf: {classes} classes need at least {classes - 1} features and the body gives {dim}; "
                f"use `etfproj`, which projects first, or a wider body"
            )
