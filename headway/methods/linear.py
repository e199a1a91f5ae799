"""FedAvg's own choices by name: a linear classifier, cross-entropy, everything shared."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from headway.local import Batch, Local
from headway.piece import Piece


class Linear(Piece):
    """z = W h + b. Says out loud what is the default, so that a recipe which also names another head is refused."""

    name, slot, paper = "linear", "head", "mcmahan2017fedavg"
    neutral = {}  # noqa: RUF012

    def head(self) -> dict[str, Any]:
        return {"feat": "id", "weights": "trainable", "wnorm": "none", "scale": 1.0}


class NoBias(Piece):
    """z = W h: FedRS's classifier."""

    name, slot, paper = "nobias", "head", "li2021fedrs"

    def head(self) -> dict[str, Any]:
        return {"bias": False}


class CE(Piece):
    """Softmax cross-entropy, the mean over the batch."""

    name, slot, paper = "ce", "loss", "mcmahan2017fedavg"
    neutral = {}  # noqa: RUF012

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        return F.cross_entropy(batch.z, batch.y)


class All(Piece):
    """Every parameter is shared."""

    name, slot, paper = "all", "share", "mcmahan2017fedavg"
    neutral = {}  # noqa: RUF012

    def share(self, name: str) -> bool:
        return True
