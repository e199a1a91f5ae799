"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Batch, Local, Net, Note, Piece, Tensor, Tree, setting


@dataclass(frozen=True)
class FedDyn(Piece):
    """A linear and a quadratic term make the clients' optima agree with the global stationary point."""

    name, slot, paper = "feddyn", "base", "acar2021feddyn"
    alpha: float = setting(0.01, "alpha", gt=0)

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"h": w.zeros()}

    def init_client(self, w: Tree) -> Note:
        return {"g": w.zeros()}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # - <g_k, w> + alpha/2 ||w - w^t||^2
        return self.alpha / 2 * (local.w - local.w0).sq_norm() - local.kept["g"].dot(local.w)

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        return {}, {"g": local.kept["g"] - self.alpha * (w - local.w0)}  # g_k <- g_k - alpha (w_k - w^t)

    def aggregate(self, arrived: Arrived) -> Tree:
        return arrived.mean(arrived.uniform)  # 1/m sum_{k in S} w_k

    def absorb(self, arrived: Arrived) -> Note:
        share = len(arrived.reports) / arrived.num_clients  # m/K
        h = arrived.kept["h"] - self.alpha * share * (arrived.w_new - arrived.w)
        return {"h": h}  # h <- h - alpha 1/K sum_{k in S} (w_k - w^t)

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        return w - arrived.kept["h"] / self.alpha  # w^{t+1} <- 1/m sum_{k in S} w_k - h / alpha
