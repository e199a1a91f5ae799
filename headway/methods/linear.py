"""FedAvg's own choices by name: a linear classifier, cross-entropy, everything shared."""

from __future__ import annotations

from headway.core import Batch, F, Local, Note, Piece, Tensor


class Linear(Piece):
    """z = W h + b. Names the default, so that a recipe which also names another head is refused."""

    name, slot, paper = "linear", "head", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"default"}

    def head(self) -> Note:
        return {"feat": "id", "weights": "trainable", "wnorm": "none", "scale": 1.0}


class NoBias(Piece):
    """z = W h: FedRS's classifier."""

    name, slot, paper = "nobias", "head", "li2021fedrs"

    def head(self) -> Note:
        return {"bias": False}


class CE(Piece):
    """Softmax cross-entropy, the mean over the batch."""

    name, slot, paper = "ce", "loss", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"default"}

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        return F.cross_entropy(batch.z, batch.y)


class All(Piece):
    """Every parameter is shared."""

    name, slot, paper = "all", "share", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"default"}

    def share(self, name: str) -> bool:
        return True
