"""What a pass of zeros shows of a body: its layers and their sizes, whether it runs channels last, what is native."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.models import native, rewrite
from headway.training.task import Task


@dataclass(frozen=True)
class Layer:
    """What a probe saw of a layer: numbers per sample."""

    name: str
    layer: nn.Module
    given: torch.Size  # of its input, without the batch
    made: torch.Size  # of its output
    moved: int  # bytes of both

    @property
    def weights(self) -> int:
        """Of a convolution; else 0."""
        return self.layer.weight.numel() if isinstance(self.layer, nn.Conv2d) else 0

    @property
    def positions(self) -> int:
        """Of a convolution's output map; else 0."""
        return math.prod(self.made[1:]) if isinstance(self.layer, nn.Conv2d) else 0

    @property
    def work(self) -> float:
        """Floating-point operations of the forward pass."""
        if isinstance(self.layer, nn.Linear):
            return 2.0 * self.layer.weight.numel() * math.prod(self.made[:-1])
        return 2.0 * self.weights * self.positions


@torch.no_grad()
def probed(task: Task) -> list[Layer]:
    """The layers of the task's body that a pass of two zeros goes through; none if the body refuses them."""
    net, seen = task.net_of({}).eval(), []

    def seer(name: str) -> Callable[..., None]:
        def see(layer: nn.Module, given: tuple[Any, ...], made: Any) -> None:
            tensors = [v for v in (*given, made) if isinstance(v, Tensor)]
            moved = sum(v.numel() * v.element_size() for v in tensors) // 2
            if tensors:
                seen.append(Layer(name, layer, tensors[0].shape[1:], tensors[-1].shape[1:], moved))

        return see

    leaves = [(name, m) for name, m in net.body.named_modules() if not list(m.children())]
    handles = [m.register_forward_hook(seer(name)) for name, m in leaves]
    try:
        net.features(torch.zeros((2, *task.dataset.shape), dtype=task.dataset.x.dtype, device=task.device))
    except Exception:
        return []  # a network that cannot take zeros keeps the ways of old
    finally:
        for handle in handles:
            handle.remove()
    return seen


@torch.no_grad()
def runs_channels_last(task: Task) -> bool:
    """Whether the body runs channels last: some refuse it, as `view` cannot flatten such maps."""
    body = task.net_of({}).body.eval()
    try:
        body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        body(torch.zeros((2, *task.dataset.shape), device=task.device))
    except Exception:
        return False
    return True


def native_share(task: Task, layers: list[Layer]) -> float:
    """The share of the body's work that native code computes here at the task's batch size; it has one thread."""
    plan = rewrite.for_training(task.net_of({}).body)
    if plan is None or torch.get_num_threads() != 1 or not native.has_wide_vectors():
        return 0.0
    united, batch = rewrite.layers_of(plan), task.batch_size
    found = [layer for layer in layers if layer.name in united]
    covered = [x.work for x in found if united[x.name].covers(x.layer, torch.Size((batch, *x.given)))]
    return sum(covered) / max(1.0, sum(layer.work for layer in layers))
