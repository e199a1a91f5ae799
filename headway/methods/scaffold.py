"""SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (Karimireddy et al., 2020), option II."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Local, Net, Note, Piece, Tree, mean, setting


@dataclass(frozen=True)
class Scaffold(Piece):
    """Control variates c_k and c cancel client drift. K_eff, not tau, divides: momentum makes a step weigh more."""

    name, slot, paper = "scaffold", "base", "karimireddy2020scaffold"
    server_lr: float = setting(1.0, "eta_g", gt=0)
    control: str = setting("participation", "scale of the server's c", choices=("participation", "none"))

    def requires(self) -> set[str]:
        return {"fresh momentum"}

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"c": w.zeros()}

    def init_client(self, w: Tree) -> Note:
        return {"c": w.zeros()}

    def broadcast(self, kept: Note) -> Note:
        return {"c": kept["c"]}

    def correct(self, g: Tree, local: Local) -> Tree:  # y <- y - eta (g - c_k + c)
        return g - local.kept["c"] + local.sent["c"]

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        c_k, c = local.kept["c"], local.sent["c"]
        c_plus = c_k - c + (local.w0 - w) / (local.k_eff * local.lr)  # c_k+ = c_k - c + (w^t - w_k) / (K_eff eta)
        return {"delta_c": c_plus - c_k}, {"c": c_plus}

    def absorb(self, arrived: Arrived) -> Note:
        m = len(arrived.reports)
        of = arrived.num_clients if self.control == "participation" else m
        delta_c = mean([r.sent["delta_c"] for r in arrived.reports], [1 / of] * m)
        return {"c": arrived.kept["c"] + delta_c}  # c <- c + 1/K sum_k (c_k+ - c_k)

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        return arrived.w + self.server_lr * (w - arrived.w)  # w <- w^t + eta_g sum_k p_k (w_k - w^t)
