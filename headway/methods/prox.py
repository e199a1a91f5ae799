"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., 2020)."""

from dataclasses import dataclass, replace

from torch import Tensor

from headway.local import Batch, Local, Phase
from headway.piece import Piece, setting


@dataclass(frozen=True)
class Prox(Piece):
    """Keeps the local model near the one it received."""

    name, slot, paper, neutral = "prox", "reg", "li2020fedprox", {"mu": 0.0}
    needs_server = needs_global = True
    mu: float = setting(0.001, "mu, strength of the pull", ge=0)

    plain_sgd: bool = setting(False, "no momentum, no weight decay, as FedETF's code runs it")

    def pace(self, phase: Phase) -> Phase:
        return replace(phase, momentum=0.0, weight_decay=0.0) if self.plain_sgd else phase

    def proximal(self, name: str) -> float:
        return self.mu

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (2): mu/2 ||w - w^t||^2
        return self.mu / 2 * (local.w - local.w0).sq_norm()
