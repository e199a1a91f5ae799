"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core import Batch, Local, Piece, Step, Tensor, setting


@dataclass(frozen=True)
class Prox(Piece):
    """Keeps the local model near the one it received."""

    name, slot, paper = "prox", "reg", "li2020fedprox"
    mu: float = setting(0.001, "mu, strength of the pull", ge=0, neutral=0.0)
    plain_sgd: bool = setting(False, "no momentum, no weight decay, as FedETF's code runs it")

    def requires(self) -> set[str]:
        return {"server", "global body"}

    def step(self, step: Step, name: str) -> Step:
        return replace(step.plain() if self.plain_sgd else step, pull=step.pull + self.mu)

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (2): mu/2 ||w - w^t||^2
        return self.mu / 2 * (local.w - local.w0).sq_norm()
