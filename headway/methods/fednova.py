"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (Wang et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.base.errors import RecipeError
from headway.core import Arrived, Batch, Local, Net, Note, Piece, Setup, Step, Tensor, Tree, mean, setting, torch


def by_name(a: Tree | float, w: Tree) -> Tree:
    """a_k of every parameter, also from a client whose parameters all stepped alike."""
    return a if isinstance(a, Tree) else w.map(lambda v: v.new_tensor(a))


@dataclass(frozen=True)
class FedNova(Piece):
    """Updates are divided by the gradients they hold, a_k, before they are averaged."""

    name, slot, paper = "fednova", "base", "wang2020fednova"
    gmf: float = setting(0.0, "slow momentum on the server", ge=0, lt=1)
    mu: float = setting(0.0, "proximal term of the local solver", ge=0)

    def requires(self) -> set[str]:
        return {"fresh momentum"}

    def check(self, setup: Setup) -> list[str]:
        if setup.lr is not None and setup.lr * self.mu >= 1:
            raise RecipeError(
                f"fednova(mu={self.mu:g}): eta mu = {setup.lr * self.mu:g} must be below 1; use a smaller mu or lr"
            )
        return []

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"buf": w.zeros()} if self.gmf else {}

    def step(self, step: Step, name: str) -> Step:  # plain SGD: a_k = (1 - (1 - eta mu)^tau) / (eta mu)
        return replace(step, pull=step.pull + self.mu)

    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return self.mu / 2 * (local.w - local.w0).sq_norm() if self.mu else torch.zeros(())

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        a = local.k_pulled.map(lambda v: torch.where(v.isinf(), 1.0, v))  # a_k; untrained: any number
        alike = {float(v) for v in a.values()}
        send = {"a": a if len(alike) > 1 else min(alike, default=1.0)}  # one number where all step alike
        return send | ({"eta": local.lr} if self.gmf else {}), {}

    def aggregate(self, arrived: Arrived) -> Tree:
        w, p = arrived.w, arrived.p
        a = [by_name(r.sent["a"], w) for r in arrived.reports]  # a_k
        tau_eff = mean(a, p)  # sum_k p_k a_k
        return w + tau_eff * mean([(r.w - w) / a_k for r, a_k in zip(arrived.reports, a, strict=True)], p)

    def absorb(self, arrived: Arrived) -> Note:
        if not self.gmf:
            return {}
        update = (arrived.w_new - arrived.w) / arrived.reports[0].sent["eta"]
        return {"buf": self.gmf * arrived.kept["buf"] + update}  # buf <- gmf buf + update / eta_t

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        return arrived.w + arrived.reports[0].sent["eta"] * arrived.kept["buf"] if self.gmf else w
