"""SGD below the vocabulary: one fused kernel for all parameters that step alike, and nothing built per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headway.tree import Tree


@dataclass
class Alike:
    """Parameters with the same rate, momentum and weight decay, and their momentum buffers by name."""

    lr: float
    momentum: float
    weight_decay: float
    params: dict[str, nn.Parameter] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


class SGD:
    """torch.optim.SGD's arithmetic, by the same kernel: w <- w - lr m, m <- momentum m + g + weight_decay w."""

    def __init__(self, groups: Sequence[Alike]):
        self.groups = [g for g in groups if g.params]
        self.params = [p for g in self.groups for p in g.params.values()]

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None] | None = None) -> None:
        """One step by these gradients, in the order of `params`, or by the parameters' own; None: it rests."""
        given = iter([p.grad for p in self.params] if grads is None else grads)
        for group in self.groups:
            moved = {name: g for name, g in zip(group.params, given, strict=False) if g is not None}
            known = {name: g for name, g in moved.items() if name in group.buffers}
            new = {name: g for name, g in moved.items() if name not in group.buffers}
            for part, first in ((known, False), (new, True)):
                if part:
                    _kernel(group, part, first)

    def buffers(self) -> Tree:
        """The momentum buffers, to be kept until the next round."""
        return Tree({name: b.clone() for g in self.groups for name, b in g.buffers.items()})


def _kernel(group: Alike, grads: dict[str, Tensor], first: bool) -> None:
    if first and group.momentum:
        group.buffers |= {name: torch.empty_like(g) for name, g in grads.items()}
    buffers = [group.buffers[name] for name in grads] if group.momentum else []
    torch._fused_sgd_(
        [group.params[name] for name in grads], list(grads.values()), buffers, weight_decay=group.weight_decay,
        momentum=group.momentum, lr=group.lr, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=first and group.momentum != 0, grad_scale=None, found_inf=None,
    )  # fmt: skip
