"""FedNova: Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization (Wang et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.errors import RecipeError
from headway.local import Batch, Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree, mean

if TYPE_CHECKING:
    from headway.recipes import Recipe


def by_name(a: Tree | float, w: Tree) -> Tree:
    """a_k of every parameter, also from a client whose parameters all stepped alike."""
    return a if isinstance(a, Tree) else w.map(lambda v: v.new_tensor(a))


@dataclass(frozen=True)
class FedNova(Piece):
    """Updates are divided by the gradients they hold, a_k, before they are averaged."""

    name, slot, paper = "fednova", "base", "wang2020fednova"
    counts_steps = True
    gmf: float = setting(0.0, "slow momentum on the server", ge=0, lt=1)
    mu: float = setting(0.0, "proximal term of the local solver", ge=0)

    def advise(self, recipe: Recipe, rounds: int, lr: float) -> list[str]:
        if lr * self.mu >= 1:
            raise RecipeError(
                f"fednova(mu={self.mu:g}): eta mu = {lr * self.mu:g} must be below 1; use a smaller mu or lr"
            )
        return []

    def proximal(self, name: str) -> float:  # plain SGD: a_k = (1 - (1 - eta mu)^tau) / (eta mu)
        return self.mu

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"buf": w.zeros()} if self.gmf else {}

    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return self.mu / 2 * (local.w - local.w0).sq_norm() if self.mu else torch.zeros(())

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        a = local.k_pulled.map(lambda v: torch.where(v.isinf(), 1.0, v))  # a_k; untrained: any number
        alike = {float(v) for v in a.values()}
        send = {"a": a if len(alike) > 1 else min(alike, default=1.0)}  # one number where all step alike
        return send | ({"eta": local.lr} if self.gmf else {}), {}

    def aggregate(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> Tree:
        a = [by_name(r.sent["a"], w) for r in reports]  # a_k
        tau_eff = mean(a, p)  # sum_k p_k a_k
        return w + tau_eff * mean([(r.w - w) / a_k for r, a_k in zip(reports, a, strict=True)], p)

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        return kept | {"eta": reports[0].sent["eta"]} if self.gmf else kept

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        if not self.gmf:
            return w_new, kept
        buf = self.gmf * kept["buf"] + (w_new - w) / kept["eta"]  # buf <- gmf buf + update / eta_t
        return w + kept["eta"] * buf, {"buf": buf}
