"""The plain linear classifier, z = W h + b: what FedAvg and most methods use."""

from typing import Any

from headway.piece import Piece


class Linear(Piece):
    """Says out loud what is the default, so that a recipe which also names another head is refused."""

    name, slot, paper = "linear", "head", "mcmahan2017fedavg"
    neutral = {}  # noqa: RUF012

    def head(self) -> dict[str, Any]:
        return {"feat": "id", "weights": "trainable", "wnorm": "none", "scale": 1.0}


class NoBias(Piece):
    """z = W h: FedRS's classifier."""

    name, slot, paper = "nobias", "head", "li2021fedrs"

    def head(self) -> dict[str, Any]:
        return {"bias": False}
