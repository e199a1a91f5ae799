"""FedProx: Federated Optimization in Heterogeneous Networks (Li et al., 2020)."""

from dataclasses import dataclass

from torch import Tensor

from headway.local import Batch, Local
from headway.piece import Piece, setting


@dataclass(frozen=True)
class Prox(Piece):
    """Keeps the local model near the one it received."""

    name, slot, paper, neutral = "prox", "reg", "li2020fedprox", {"mu": 0.0}
    needs_server = needs_global = True
    mu: float = setting(0.001, "mu, strength of the pull", ge=0)

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (2): mu/2 ||w - w^t||^2
        return self.mu / 2 * (local.w - local.w0).sq_norm()
