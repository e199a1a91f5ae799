"""FedETF: No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed Classifier
(Li et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import WidthError
from headway.core import Note, Piece, Setup, setting


@dataclass(frozen=True)
class ETFProj(Piece):
    """mu = g(p; h) / ||g(p; h)||, z_c = beta v_c . mu: a projection towards a fixed ETF, under a temperature."""

    name, slot, paper = "etfproj", "head", "li2023fedetf"
    d: int | None = setting(None, "width after the projection; C when not given", ge=1)
    temperature: str = setting("learnable", "beta", choices=("learnable", "fixed"))
    beta: float = setting(1.0, "beta at the start, and to the end if fixed", gt=0)
    project: bool = setting(True, "false: unit features meet the ETF directly (Table 4)")

    def head(self) -> Note:
        learnable = self.temperature == "learnable"
        beta = {"scale": "learnable", "scale_start": self.beta} if learnable else {"scale": self.beta}
        spec = {"weights": "frozen_etf", "wnorm": "unit", "bias": False} | beta
        return spec | ({"feat": "proj+l2", "proj_dim": self.d} if self.project else {"feat": "l2"})

    def check(self, setup: Setup) -> list[str]:
        C = setup.classes
        d = (self.d or C) if self.project else setup.dim
        if d < C - 1:
            fix = "leave d out" if self.project else "use project=true, or a wider body"
            raise WidthError(f"etfproj: {C} classes need at least {C - 1} features and there are {d}; {fix}")
        return []
