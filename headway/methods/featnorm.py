"""FedFR, feature-norm regularisation: FedFN (Kim et al., 2023), Eq. (1)."""

from dataclasses import dataclass

from torch import Tensor

from headway.local import Batch, Local
from headway.piece import Piece, setting


@dataclass(frozen=True)
class FeatNorm(Piece):
    """Penalises the norm of the features itself, not its square."""

    name, slot, paper, neutral = "featnorm", "reg", "kim2023fedfn", {"mu": 0.0}
    mu: float = setting(0.005, "mu", ge=0)

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (1): mu mean_x ||h(x)||_2
        return self.mu * batch.h.norm(dim=1).mean()
