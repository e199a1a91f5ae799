"""How a run is carried out unless --tune times it: by fixed rules, so that bits are the same on one kind of machine.

config.json records the choices. A run from before there were such rules goes on as it began.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.net import WHOLE, Net, normalises_by_batch
from headway.training.cohort import cohort_size
from headway.training.task import Task

CACHE = 2 * 2**20  # bytes of one core's cache that the images of a chunk may fill
FEWEST, MOST = 16, WHOLE  # samples of a chunk
TINY_MAP = 4  # positions; on smaller maps a convolution spends its time rearranging the weight
RECORD = ("layout", "chunk", "cohort")


@dataclass(frozen=True)
class Layer:
    """What a probe saw of a layer: numbers per image."""

    moved: int  # bytes of its input and output
    weights: int  # of a convolution; else 0
    positions: int  # of its output map


def by_rule(task: Task) -> Task:
    """The task as a new run carries it out."""
    layers = probed(task)
    return replace(task.in_layout(layout_of(layers)), chunk=chunk_of(layers, task.net_of({})), cohort=cohort_size(task))


def record(task: Task) -> dict[str, Any]:
    """The choices as config.json holds them."""
    return {name: getattr(task, name) for name in RECORD}


def as_recorded(task: Task, options: Mapping[str, Any]) -> Task:
    """The task as a run began; one without a record has the ways of the time before there was one."""
    chunk, cohort = options.get("chunk", WHOLE), options.get("cohort", 1)
    return replace(task.in_layout(options.get("layout", "channels_first")), chunk=chunk, cohort=cohort)


def layout_of(layers: list[Layer]) -> str:
    """Channels last for images, unless most weights work on tiny maps, as VGG11's do; tables have no layout."""
    weights = sum(layer.weights for layer in layers)
    on_tiny_maps = sum(layer.weights for layer in layers if layer.positions <= TINY_MAP)
    return "channels_last" if weights and on_tiny_maps <= weights / 2 else "channels_first"


def chunk_of(layers: list[Layer], net: Net) -> int:
    """How many samples are evaluated at once: as many as fit the cache at the widest layer.

    A body that normalises by the batch is evaluated in whole chunks as ever: its predictions depend on them.
    """
    widest = max((layer.moved for layer in layers), default=0)
    images = any(layer.weights for layer in layers)
    return min(MOST, max(FEWEST, CACHE // max(1, widest))) if images and not normalises_by_batch(net) else WHOLE


@torch.no_grad()
def probed(task: Task) -> list[Layer]:
    """The layers of the task's body that a pass of two zeros goes through; none if the body refuses them."""
    net, seen = task.net_of({}).eval(), []

    def see(layer: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        tensors = [v for v in (*given, made) if isinstance(v, Tensor)]
        conv = isinstance(layer, nn.Conv2d)
        positions = math.prod(made.shape[2:]) if conv else 0
        moved = sum(v.numel() * v.element_size() for v in tensors) // 2
        seen.append(Layer(moved, layer.weight.numel() if conv else 0, positions))  # type: ignore[operator]

    handles = [m.register_forward_hook(see) for m in net.body.modules() if not list(m.children())]
    try:
        net.features(torch.zeros((2, *task.dataset.shape), dtype=task.dataset.x.dtype, device=task.device))
    except Exception:
        return []  # a network that cannot take zeros keeps the ways of old
    finally:
        for handle in handles:
            handle.remove()
    return seen
