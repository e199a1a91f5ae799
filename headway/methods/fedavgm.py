"""FedAvgM: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (Hsu et al., 2019)."""

from dataclasses import dataclass
from typing import Any

from headway.piece import Piece, setting
from headway.tree import Tree


@dataclass(frozen=True)
class FedAvgM(Piece):
    """Momentum on the server: the averaged update is a gradient step with inertia."""

    name, slot, paper, neutral = "fedavgm", "base", "hsu2019fedavgm", {"beta": 0.0}
    beta: float = setting(0.1, "beta, server momentum", ge=0, lt=1)
    server_lr: float = setting(1.0, "eta_g", gt=0)
    dampening: bool = setting(False, "v <- beta v + (1 - beta) Delta, as in MOON's code")

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"v": w.zeros()}

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        delta = w_new - w  # Delta = sum_k p_k (w_k - w)
        if self.beta == 0 and self.server_lr == 1:
            return w_new, {"v": delta}  # w + (w_new - w) rounds differently; FedAvg to the last bit
        v = self.beta * kept["v"] + (1 - self.beta if self.dampening else 1.0) * delta  # v <- beta v + Delta
        return w + self.server_lr * v, {"v": v}  # w <- w + eta_g v
