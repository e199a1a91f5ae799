"""FedFR, feature-norm regularisation: FedFN (Kim et al., 2023), Eq. (1)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, Local, Piece, Tensor, setting


@dataclass(frozen=True)
class FeatNorm(Piece):
    """Penalises the norm of the features itself, not its square."""

    name, slot, paper = "featnorm", "reg", "kim2023fedfn"
    mu: float = setting(0.005, "mu", ge=0, neutral=0.0)

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (1): mu mean_x ||h(x)||_2
        return self.mu * batch.h.norm(dim=1).mean()
