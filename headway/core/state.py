"""The states that are kept between rounds, and the messages between server and clients, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headway.base.lazy import torch
from headway.base.tree import Tree

if TYPE_CHECKING:
    from headway.core.piece import Piece

Note = dict[str, Any]  # one piece's own values: tensors, trees, numbers, strings
Notes = dict[str, Note]  # piece name -> its note


@dataclass(frozen=True)
class Server:
    """The state of the server between rounds."""

    round: int  # t
    w: Tree  # global parameters w^t; personal ones have their first values here
    stats: Tree  # BatchNorm running statistics; averaged, and never used in a method's formulas
    kept: Notes


@dataclass(frozen=True)
class Client:
    """The state of a client between rounds."""

    id: int
    personal: Tree  # parameters that never leave the client
    kept: Notes
    momentum: Tree = field(default_factory=Tree)  # the optimiser's buffers, kept only with persist_momentum

    def nbytes(self) -> int:
        return self.personal.nbytes() + nbytes(self.kept) + self.momentum.nbytes()

    @property
    def blank(self) -> bool:
        """Whether the state is empty, so that it need not be stored."""
        return not self.personal and not self.momentum and not any(self.kept.values())


@dataclass(frozen=True)
class Broadcast:
    """Server -> client."""

    round: int
    w: Tree  # the shared parameters
    stats: Tree
    sent: Notes

    def nbytes(self) -> int:
        return self.w.nbytes() + self.stats.nbytes() + nbytes(self.sent)


@dataclass(frozen=True)
class Report:
    """Client -> server."""

    client: int
    n: int  # local examples n_k
    steps: int  # local steps tau_k
    w: Tree  # shared parameters after local training, w_k
    stats: Tree
    sent: dict[str, Any]  # piece name -> its message; one message after `of`
    loss: float = float("nan")  # mean training loss of the last epoch, for progress and the divergence check

    def of(self, piece: Piece) -> Report:
        """The same report with `sent` narrowed to one piece's message."""
        return replace(self, sent=self.sent.get(piece.name, {}))

    def nbytes(self) -> int:
        return self.w.nbytes() + self.stats.nbytes() + nbytes(self.sent)


def numbers(notes: Notes) -> dict[str, float]:
    """The plain numbers in the pieces' notes, as `piece.key`; they are written to the metrics of a round."""
    return {
        f"{name}.{key}": value
        for name, note in notes.items()
        for key, value in note.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def nbytes(value: object) -> int:
    """The size of a message in bytes; a number counts as 4 bytes."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(nbytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes(v) for v in value)
    if isinstance(value, bool | int | float):
        return 4
    size = getattr(value, "nbytes", None)  # a value that computes its own size
    return int(size()) if callable(size) else 0
