"""SGD as the training loop uses it: one fused kernel per group of parameters, and no Python objects made per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headway.base.tree import Tree


@dataclass
class ParameterGroup:
    """Parameters with the same rate, momentum and weight decay, and their momentum buffers by name."""

    lr: float
    momentum: float
    weight_decay: float
    params: dict[str, nn.Parameter] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)


class SGD:
    """torch.optim.SGD's arithmetic by the same kernel: m <- momentum m + g + weight_decay w, then w <- w - lr m."""

    def __init__(self, groups: Sequence[ParameterGroup]):
        self.groups = [g for g in groups if g.params]
        self.params = [p for g in self.groups for p in g.params.values()]

    def step(self, grads: Sequence[Tensor | None] | None = None) -> None:
        """One step by these gradients, in the order of `params`, or by their `grad`; one without a gradient stays."""
        given = [p.grad for p in self.params] if grads is None else grads
        at = 0
        with torch.no_grad():
            for group in self.groups:
                mine = given[at : at + len(group.params)]
                at += len(mine)
                moved = [(name, g) for name, g in zip(group.params, mine, strict=True) if g is not None]
                _kernel(group, [pair for pair in moved if pair[0] in group.buffers], first=False)
                _kernel(group, [pair for pair in moved if pair[0] not in group.buffers], first=True)

    def buffers(self) -> Tree:
        """Copies of the momentum buffers by name, for the next round."""
        return Tree({name: b.clone() for g in self.groups for name, b in g.buffers.items()})


def _kernel(group: ParameterGroup, moved: Sequence[tuple[str, Tensor]], first: bool) -> None:
    if not moved:
        return
    params: list[Tensor] = [group.params[name] for name, _ in moved]
    grads = [in_layout_of(p, g) for p, (_, g) in zip(params, moved, strict=True)]
    if first and group.momentum:
        group.buffers |= {name: torch.empty_like(g) for (name, _), g in zip(moved, grads, strict=True)}
    buffers = [group.buffers[name] for name, _ in moved] if group.momentum else []
    fused_sgd(params, grads, buffers, group.lr, group.momentum, group.weight_decay, first)


def fused_sgd(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    lr: float,
    momentum: float,
    decay: float,
    first: bool,
) -> None:
    """One step of these parameters by torch's kernel; in the first one it writes the buffers.

    Gradients and buffers have the strides of their parameters.
    """
    params, grads, buffers = ([in_memory_order(t) for t in part] for part in (params, grads, buffers))
    torch._fused_sgd_(
        params, grads, buffers, weight_decay=decay, momentum=momentum, lr=lr, dampening=0.0, nesterov=False,
        maximize=False, is_first_step=first and momentum != 0, grad_scale=None, found_inf=None,
    )  # fmt: skip


def in_memory_order(t: Tensor) -> Tensor:
    """The same numbers in the order in which they are stored: torch's kernel copies filters that are channels last."""
    last = t.ndim == 4 and not t.is_contiguous() and t.is_contiguous(memory_format=torch.channels_last)
    return t.permute(0, 2, 3, 1) if last else t


def in_layout_of(p: Tensor, value: Tensor) -> Tensor:
    """The value in the parameter's memory layout: the kernel goes through memory and ignores strides."""
    if value.stride() == p.stride():
        return value
    same = all(a == b for a, b, n in zip(value.stride(), p.stride(), p.shape, strict=True) if n > 1)  # 1x1 filters
    return value if same else torch.empty_like(p, requires_grad=False).copy_(value)
