"""FedAvgM: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification (Hsu et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Net, Note, Piece, Tree, setting


@dataclass(frozen=True)
class FedAvgM(Piece):
    """Momentum on the server: the averaged update is a gradient step with momentum."""

    name, slot, paper = "fedavgm", "base", "hsu2019fedavgm"
    beta: float = setting(0.1, "beta, server momentum", ge=0, lt=1, neutral=0.0)
    server_lr: float = setting(1.0, "eta_g", gt=0)
    dampening: bool = setting(False, "v <- beta v + (1 - beta) Delta, as in MOON's code")

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"v": w.zeros()}

    def absorb(self, arrived: Arrived) -> Note:
        delta = arrived.w_new - arrived.w  # Delta = sum_k p_k (w_k - w^t)
        weight = 1 - self.beta if self.dampening else 1.0
        return {"v": self.beta * arrived.kept["v"] + weight * delta}  # v <- beta v + Delta

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        if self.beta == 0 and self.server_lr == 1:
            return w  # w^t + (w - w^t) rounds differently; FedAvg to the last bit
        return arrived.w + self.server_lr * arrived.kept["v"]  # w <- w^t + eta_g v
