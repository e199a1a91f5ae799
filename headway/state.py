"""Everything that lasts between rounds and everything that travels: frozen values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from headway.tree import Tree

if TYPE_CHECKING:
    from headway.piece import Piece

Notes = dict[str, dict[str, Any]]  # piece name -> that piece's own values: tensors, trees, numbers, strings


@dataclass(frozen=True)
class Server:
    """All the server remembers between rounds."""

    round: int  # t
    w: Tree  # global parameters w^t; personal ones rest here at their first values
    stats: Tree  # BatchNorm running statistics: averaged, never part of a method's arithmetic
    kept: Notes


@dataclass(frozen=True)
class Client:
    """All one client remembers between rounds."""

    id: int
    personal: Tree  # parameters that never leave the client
    kept: Notes
    momentum: Tree = field(default_factory=Tree)  # the optimiser's buffers, kept only when the task says so (D3)

    def nbytes(self) -> int:
        return self.personal.nbytes() + nbytes(self.kept) + self.momentum.nbytes()

    @property
    def blank(self) -> bool:
        """Nothing to remember: the client need not be stored at all."""
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


def nbytes(value: object) -> int:
    """Size of a message: tensors by their storage, a number counts as 4 bytes."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(nbytes(v) for v in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes(v) for v in value)
    if isinstance(value, bool | int | float):
        return 4
    weight = getattr(value, "nbytes", None)  # a value that knows how it travels
    return int(weight()) if callable(weight) else 0
