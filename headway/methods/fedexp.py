"""FedExP: Speeding Up Federated Averaging via Extrapolation (Jhunjhunwala et al., 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree, mean


@dataclass(frozen=True)
class FedExP(Piece):
    """The server steps further when client updates disagree; it predicts with the mean of the last two iterates."""

    name, slot, paper = "fedexp", "base", "jhunjhunwala2023fedexp"
    eps: float = setting(1e-3, "eps", gt=0)
    average: bool = setting(True, "evaluate (w^{t+1} + w^t) / 2; training goes on from w^{t+1}")

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"last": w}

    def step(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> tuple[float, Tree]:
        deltas = [r.w - w for r in reports]
        dbar = mean(deltas, p)  # Dbar = sum_k p_k Delta_k
        spread = sum(q * float(d.sq_norm()) for q, d in zip(p, deltas, strict=True))  # sum_k p_k ||Delta_k||^2
        return max(1.0, spread / (2 * (float(dbar.sq_norm()) + self.eps))), dbar  # eta_g, Dbar

    def aggregate(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> Tree:
        eta_g, dbar = self.step(w, reports, p)
        return w + eta_g * dbar

    def trace(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> dict[str, float]:
        return {"eta_g": self.step(w, reports, p)[0]}

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        return w_new, {"last": w}

    def shown(self, w: Tree, kept: dict[str, Any]) -> Tree:
        return 0.5 * (w + kept["last"]) if self.average else w
