"""What a hook sees on the client: the batch, the phase of training, and the client's own world."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.tree import Tree

if TYPE_CHECKING:
    from headway.models.net import Net
    from headway.piece import Piece

Names = Callable[[str], bool]  # a predicate on parameter names


def everything(name: str) -> bool:
    return True


def nothing(name: str) -> bool:
    return False


def in_head(name: str) -> bool:
    return name.startswith("head.")


def in_body(name: str) -> bool:
    return name.startswith("body.")


def same_rate(name: str) -> float:
    return 1.0


def no_fit(start: Tree, mu: float, plain: bool = False) -> Tree:
    raise RuntimeError("a second model is trained in `report`, at the end of a client's round")


def no_weights(pulled: bool) -> Tree:
    raise RuntimeError("the weights of gradients are known in a client's round, not when it trains for itself")


@dataclass(frozen=True)
class Batch:
    x: Tensor  # [B, ...] as stored, augmented
    y: Tensor  # [B]
    h: Tensor  # [B, d]  features, before any lift
    z: Tensor  # [B, C]  logits
    lifted: Tensor | None = None  # [B, d]  what the head saw, where that is known to differ from h


@dataclass(frozen=True)
class Phase:
    """A stretch of local training: how long, and which parameters move. What it does not train is in eval mode."""

    epochs: int
    trains: Names = everything
    lr: Callable[[str], float] = same_rate  # factor on the learning rate, by parameter name
    rate: float | None = None  # a learning rate of its own instead of the round's
    thaws: Names = nothing  # frozen tensors that become the client's own (personalisation only)
    stage: str = ""  # a name, where a paper reports accuracy after each stage
    steps: int | None = None  # stop after so many steps
    plain: Names = nothing  # parameters that step without momentum and weight decay
    momentum: float | None = None  # of its own instead of the task's
    weight_decay: float | None = None
    awake: bool = False  # what it does not train is in train mode too
    loss: str = "recipe"  # recipe: all of its loss and corrections; criterion: without its penalties; ce: plain


@dataclass(frozen=True)
class Local:
    """What a hook may look at on the client. `kept`, `sent` and `ready` are the asking piece's own."""

    net: Net
    w0: Tree  # shared parameters as received, w^t
    x: Tensor  # [n_k, ...] as stored
    y: Tensor  # [n_k]
    round: int
    lr: float  # eta_t, constant within the round
    weights: Callable[[bool], Tree]  # what k_eff and k_pulled are read from: most recipes never ask
    share: Names
    kept: dict[str, Any]  # what the piece remembered from its last round here
    sent: dict[str, Any]  # what its server side broadcast this round
    ready: dict[str, Any]  # what its `prepare` made for this round
    fit: Callable[..., Tree] = no_fit  # (start, mu, plain) -> a second model trained here, pulled to w0 by mu
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list, compare=False, repr=False)  # see wants_seen
    features: list[Tensor] = field(default_factory=list, compare=False, repr=False)  # [n_k, d] while the body rests
    memo: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)  # shared by all pieces
    _views: dict[str, Local] = field(default_factory=dict, compare=False, repr=False)

    @property
    def w(self) -> Tree:
        """Shared parameters now; gradients flow through them."""
        params = self.net.params()
        return Tree({name: params[name] for name in self.w0})

    @property
    def k_eff(self) -> Tree:
        """K_eff by parameter, scalars: total weight of the gradients in w_k - w^t; tau_k for plain SGD."""
        return self.weights(False)

    @property
    def k_pulled(self) -> Tree:
        """The same where proximal terms pull w_k back to w^t."""
        return self.weights(True)

    @property
    def counts(self) -> Tensor:
        """Examples per class, n_{k,c}, [C]."""
        return torch.bincount(self.y, minlength=self.net.classes)

    def class_means(self) -> Tensor:
        """Mean feature of each local class in eval mode, [C, d]; zero rows for absent classes."""
        if "class_means" not in self.memo:  # several pieces may ask
            self.memo["class_means"] = self._means(self.net.features_of(self.x), self.y)
        return self.memo["class_means"]

    def seen_means(self) -> Tensor:
        """Mean feature of each class as training saw it in its last epoch, [C, d]; zero rows for absent classes."""
        h, y = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        return self._means(h, y)

    def _means(self, h: Tensor, y: Tensor) -> Tensor:
        sums = h.new_zeros(self.net.classes, h.shape[1]).index_add_(0, y, h)  # [C, d]
        return sums / torch.bincount(y, minlength=self.net.classes).clamp(min=1)[:, None]

    def frozen(self, w: Tree) -> Net:
        """A copy of the net that holds w and learns nothing: a teacher, or the model of last round."""
        return copy.deepcopy(self.net).load(w).eval().requires_grad_(False).remembering(self.x)

    def prepared(self, ready: dict[str, Any]) -> Local:
        """The same client with what the pieces made ready for this round."""
        return replace(self, ready=ready, _views={})

    def of(self, piece: Piece) -> Local:
        """The same client as one piece sees it; one view a piece, made once."""
        view = self._views.get(piece.name)
        if view is None:
            mine = {side: getattr(self, side).get(piece.name, {}) for side in ("kept", "sent", "ready")}
            view = self._views[piece.name] = replace(self, **mine, _views={})
        return view


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Total weight of the gradients in w_0 - w_tau, over eta: (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho).

    With a proximal term, q = eta mu: the displacement of a unit gradient, m <- rho m + 1 - q d, d <- d + m.
    """
    rho = momentum
    if pull:
        d = m = 0.0
        for _ in range(steps):
            m = rho * m + 1 - pull * d
            d += m
        return d
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
