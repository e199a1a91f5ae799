"""FedDyn: Federated Learning Based on Dynamic Regularization (Acar et al., 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headway.local import Batch, Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree, mean


@dataclass(frozen=True)
class FedDyn(Piece):
    """A linear and a quadratic term make the clients' optima agree with the global stationary point."""

    name, slot, paper = "feddyn", "base", "acar2021feddyn"
    alpha: float = setting(0.01, "alpha", gt=0)

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"h": w.zeros()}

    def init_client(self, w: Tree) -> dict[str, Any]:
        return {"g": w.zeros()}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # - <g_k, w> + alpha/2 ||w - w^t||^2
        return self.alpha / 2 * (local.w - local.w0).sq_norm() - local.kept["g"].dot(local.w)

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"g": local.kept["g"] - self.alpha * (w - local.w0)}  # g_k <- g_k - alpha (w_k - w^t)

    def aggregate(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> Tree:
        return mean([r.w for r in reports], [1 / len(reports)] * len(reports))  # 1/m sum_k w_k, unweighted

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        return kept | {"share": len(reports) / num_clients}  # m/K: K counts all clients, also those at rest

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        h = kept["h"] - self.alpha * kept["share"] * (w_new - w)  # h <- h - alpha 1/K sum_{k in S} (w_k - w^t)
        return w_new - h / self.alpha, {"h": h}  # w <- mean - h / alpha
