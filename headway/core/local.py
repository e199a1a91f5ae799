"""Local and Batch: the arguments of hooks on the client, for a round and for one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headway.base.lazy import Tensor, torch
from headway.base.names import Names
from headway.base.tree import Tree

if TYPE_CHECKING:
    from headway.core.piece import Piece
    from headway.models.net import Net, Teacher


@dataclass(frozen=True)
class Batch:
    """One mini-batch of a local step."""

    x: Tensor  # [B, ...] as stored, augmented
    y: Tensor  # [B]
    h: Tensor  # [B, d]  features, before any lift
    z: Tensor  # [B, C]  logits
    lifted: Tensor | None = None  # [B, d]  the input of the head; None if it is h
    rows: Tensor | None = None  # [B]  positions among the client's samples; None where x is augmented


@dataclass(frozen=True)
class Measured:
    """Values of the net on the client's data, computed when a piece first asks for them; all pieces share them."""

    net: Net
    x: Tensor
    y: Tensor

    @cached_property
    def class_means(self) -> Tensor:
        """[C, d]"""
        return means_by_class(self.net.features_of(self.x), self.y, self.net.classes)


def means_by_class(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """The mean of h [n, d] in each class, [C, d]; zero rows for absent classes."""
    sums = h.new_zeros(classes, h.shape[1]).index_add_(0, y, h)  # [C, d]
    return sums / torch.bincount(y, minlength=classes).clamp(min=1)[:, None]


def no_fit(start: Tree, under: Piece) -> Tree:
    raise RuntimeError("local.fit can only be called in a client's round, in the hook `report`")


def no_step_weights(pulled: bool) -> Tree:
    raise RuntimeError("local.k_eff is only known in a client's round, not when a client personalises its model")


@dataclass(frozen=True)
class Local:
    """The client as a hook sees it. In a hook, `kept`, `sent` and `ready` are those of the hook's piece."""

    net: Net
    w0: Tree  # shared parameters as received, w^t
    x: Tensor  # [n_k, ...] as stored
    y: Tensor  # [n_k]
    round: int  # t
    lr: float  # eta_t, constant within the round
    share: Names
    kept: dict[str, Any]  # the note that the piece kept in this client's last round
    sent: dict[str, Any]  # the note that it broadcast from the server in this round
    ready: dict[str, Any] = field(default_factory=dict)  # the note that its `prepare` made for this round
    step_weights: Callable[[bool], Tree] = no_step_weights  # computes k_eff and k_pulled
    fit: Callable[[Tree, Piece], Tree] = no_fit  # (start, piece): trains a second model on the client's data
    last_epoch: tuple[Tensor, Tensor] | None = None  # h [n, d] and y [n] of the last epoch of training
    measured: Measured | None = None  # for this state of the net; None: nothing is measured yet

    def __post_init__(self) -> None:
        if self.measured is None:
            object.__setattr__(self, "measured", Measured(self.net, self.x, self.y))

    @property
    def w(self) -> Tree:
        """The present shared parameters, with gradients."""
        params = self.net.params()
        return Tree({name: params[name] for name in self.w0})

    @property
    def k_eff(self) -> Tree:
        """K_eff by parameter, scalars: total weight of the gradients in w_k - w^t; tau_k for plain SGD."""
        return self.step_weights(False)

    @property
    def k_pulled(self) -> Tree:
        """The same if proximal terms in the loss pull w_k back to w^t."""
        return self.step_weights(True)

    @property
    def counts(self) -> Tensor:
        """Examples per class, n_{k,c}, [C]."""
        return torch.bincount(self.y, minlength=self.net.classes)

    def class_means(self) -> Tensor:
        """Mean feature of each local class in eval mode, [C, d]; zero rows for absent classes."""
        assert self.measured is not None
        return self.measured.class_means

    def last_epoch_means(self) -> Tensor:
        """Mean feature of each class during the last epoch of training, [C, d]; zero rows for absent classes."""
        if self.last_epoch is None:
            raise RuntimeError('local.last_epoch_means: the piece must require "features of the last epoch"')
        return means_by_class(*self.last_epoch, self.net.classes)

    def frozen(self, w: Tree) -> Teacher:
        """A copy of the net with parameters w that is not trained: a teacher, or the model of the last round."""
        return self.net.teacher(w, self.x)

    def prepared(self, ready: dict[str, Any]) -> Local:
        """The same client with the notes of `prepare`."""
        return replace(self, ready=ready, measured=None)

    def trained(self, last_epoch: tuple[Tensor, Tensor] | None) -> Local:
        """The same client after local training; the model has changed, so everything is measured anew."""
        return replace(self, last_epoch=last_epoch, measured=None)

    def of(self, piece: Piece) -> Local:
        """The same client with the notes of one piece; made once per piece."""
        return self._views.get(piece.name, self._without_notes)

    @cached_property
    def _views(self) -> dict[str, Local]:
        names = self.kept.keys() | self.sent.keys() | self.ready.keys()
        notes = {"kept": self.kept, "sent": self.sent, "ready": self.ready}
        return {name: replace(self, **{side: note.get(name, {}) for side, note in notes.items()}) for name in names}

    @cached_property
    def _without_notes(self) -> Local:
        return replace(self, kept={}, sent={}, ready={})
