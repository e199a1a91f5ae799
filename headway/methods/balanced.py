"""Balanced feature loss: No Fear of Classifier Biases (Li et al., 2023), Eq. (6)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, Local, Note, Piece, Tensor, setting
from headway.models.losses import balanced_softmax, log_prior


@dataclass(frozen=True)
class Balanced(Piece):
    """The softmax weighs each class by the client's own count of it, so rare classes are not pushed away."""

    name, slot, paper = "balanced", "loss", "li2023fedetf"
    gamma: float = setting(1.0, "gamma, power of the class prior", ge=0, neutral=0.0)
    absent: str = setting("floor1", "what a count of zero becomes", choices=("floor1", "eps", "mask"))

    def prepare(self, local: Local) -> Note:
        return {"prior": log_prior(local.counts, self.absent)}  # log n_{k,c}, [C]

    def criterion(self, batch: Batch, local: Local) -> Tensor:  # Eq. (6): CE(z + gamma log n_k, y)
        return balanced_softmax(batch.z, batch.y, local.ready["prior"], self.gamma)
