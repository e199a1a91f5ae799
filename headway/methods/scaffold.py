"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., 2020), option II."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.local import Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree, mean


@dataclass(frozen=True)
class Scaffold(Piece):
    """Control variates c_k and c cancel client drift. K_eff, not tau, divides: momentum makes a step weigh more."""

    name, slot, paper = "scaffold", "base", "karimireddy2020scaffold"
    counts_steps = True
    server_lr: float = setting(1.0, "eta_g", gt=0)
    control: str = setting("participation", "scale of the server's c", choices=("participation", "none"))

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"c": w.zeros()}

    def init_client(self, w: Tree) -> dict[str, Any]:
        return {"c": w.zeros()}

    def broadcast(self, kept: dict[str, Any]) -> dict[str, Any]:
        return {"c": kept["c"]}

    def correct(self, g: Tree, local: Local) -> Tree:  # y <- y - eta (g - c_k + c)
        return g - local.kept["c"] + local.sent["c"]

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        c_k, c = local.kept["c"], local.sent["c"]
        c_plus = c_k - c + (local.w0 - w) / (local.k_eff * local.lr)  # c_k+ = c_k - c + (w^t - w_k) / (K_eff eta)
        return {"delta_c": c_plus - c_k}, {"c": c_plus}

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        of = num_clients if self.control == "participation" else len(reports)
        return {"c": kept["c"] + mean([r.sent["delta_c"] for r in reports], [1 / of] * len(reports))}  # c += 1/K sum

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        return w + self.server_lr * (w_new - w), kept  # w <- w + eta_g sum_k p_k (w_k - w)
