"""What the layers of any net give out, by forward hooks: block after block, then the features, then the logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.net import Net, chunks

MOST_LAYERS = 12
WIDEST = 2048  # a map with more numbers than this is averaged over positions: more columns cost minutes a layer
GRIDS = (4, 2, 1)  # to so many positions a side: the most that leave
COLUMNS = 256  # at most so many numbers, or one position
NORMS = (
    nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.LocalResponseNorm,
)  # fmt: skip
FEWEST_BLOCKS = 3  # a net that shows fewer is looked into more closely


@dataclass(frozen=True)
class Layer:
    """A place in the net where activations are read."""

    name: str
    width: int  # numbers an input, p
    positions: str  # "" as it is; "2x2" where a map was averaged to so many positions


def local_logits(net: Net, h: Tensor) -> Tensor:
    """Logits of the classifier this client trains, also where the head holds two, [B, C]."""
    z: Tensor = net.head.personal(h) if net.head.two_classifiers else net.head(h)  # type: ignore[operator]
    return z


def weighted(module: nn.Module) -> bool:
    """Whether it holds a convolution, a linear layer or anything else with a weight that is no norm."""
    inner = [m for m in module.modules() if not isinstance(m, NORMS)]
    return any(p.ndim > 1 for m in inner for p in m.parameters(recurse=False))


def units(body: nn.Module) -> dict[nn.Module, str]:
    """The modules a body is a row of, by name: single layers, and blocks with a forward of their own.

    Sequential containers are looked into. Where that leaves very few places, so are the blocks.
    """
    found = dict(_children(body, ""))
    while sum(map(weighted, found)) < FEWEST_BLOCKS:
        deeper = {
            m: n for unit, name in found.items() for m, n in (dict(_children(unit, name)) or {unit: name}).items()
        }
        if deeper == found:
            break
        found = deeper
    return found


def _children(module: nn.Module, prefix: str) -> Iterator[tuple[nn.Module, str]]:
    for key, child in module.named_children():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from _children(child, name)
        else:
            yield child, name


@contextmanager
def watched(body: nn.Module, seen: Callable[[str, Tensor], None]) -> Iterator[Callable[[], None]]:
    """While open, `seen` hears the output of every block of a pass: after the norm and activation that follow it.

    Where a pool stands between a layer and its activation, that is what is left after the pool.
    The context gives a function to be called at the end of each pass.
    """
    current: list[tuple[str, Tensor]] = []
    active = False  # whether the current block has had its activation

    def flush() -> None:
        while current:
            seen(*current.pop())

    def hook(name: str, heavy: bool) -> Callable[[nn.Module, Any, Any], None]:
        def listen(module: nn.Module, inputs: Any, out: Any) -> None:
            nonlocal active
            if not isinstance(out, Tensor):
                return
            activation = type(module).__module__ == nn.ReLU.__module__
            if heavy:
                flush()
                current.append((name, out))
                active = False
            elif current and (out.shape == current[0][1].shape or (activation and not active)):  # pools change shapes
                current[0] = (current[0][0], out)
                active = active or activation

        return listen

    handles = [m.register_forward_hook(hook(name, weighted(m))) for m, name in units(body).items()]
    try:
        yield flush
    finally:
        for handle in handles:
            handle.remove()


def grid_of(shape: Sequence[int]) -> tuple[int, int] | None:
    """The positions that a map [channels, height, width] is averaged to; None where it stays as it is."""
    channels, *sides = shape
    if channels * sides[0] * sides[1] <= WIDEST:
        return None
    grids = [(min(g, sides[0]), min(g, sides[1])) for g in GRIDS]
    return next((g for g in grids if channels * g[0] * g[1] <= COLUMNS), grids[-1])


def rows(out: Tensor) -> tuple[Tensor, str]:
    """Activations as one row an input, [B, p], and the positions that wide maps were averaged to ("" for none)."""
    positions = ""
    if out.ndim == 4 and (grid := grid_of(out.shape[1:])):
        out, positions = F.adaptive_avg_pool2d(out, grid), f"{grid[0]}x{grid[1]}"
    elif out.ndim == 3 and out[0].numel() > WIDEST:  # [B, positions, channels]
        out, positions = out.mean(1), "1"
    return out.flatten(1), positions


def layers_of(net: Net, x: Tensor, most: int = MOST_LAYERS) -> list[Layer]:
    """The places looked at: blocks of the body in the order they run, evenly chosen; features; logits."""
    found: list[tuple[Layer, Tensor]] = []

    def note(name: str, out: Tensor) -> None:
        row, positions = rows(out)
        found.append((Layer(unused(name, found), row.shape[1], positions), row))

    sample = x[:2] if len(x) > 1 else x[:1].repeat(2, *[1] * (x.ndim - 1))
    with torch.no_grad(), watched(net.body, note) as end:
        h = net.features(sample)
        end()
    if found and found[-1][1].shape == h.shape and torch.equal(found[-1][1], h):
        found.pop()  # the last block's output is the features
    blocks = [layer for layer, _ in found]
    chosen = np.unique(np.linspace(0, len(blocks) - 1, min(len(blocks), most - 2)).round().astype(int))
    ends = [Layer("features", h.shape[1], ""), Layer("logits", net.classes, "")]
    return [*(blocks[i] for i in chosen), *ends]


def unused(name: str, found: Sequence[tuple[Layer, Tensor]]) -> str:
    """A block that runs twice is two layers."""
    names = [layer.name for layer, _ in found]
    return name if name not in names else next(n for i in range(2, len(names) + 2) if (n := f"{name}#{i}") not in names)


@torch.no_grad()
def activations(net: Net, x: Tensor, layers: Sequence[Layer], batch: int = 256) -> Iterator[dict[str, Tensor]]:
    """What each of these layers gives for one batch of the inputs after another, [B, p], in eval mode, on the CPU."""
    wanted = {layer.name for layer in layers}
    given: dict[str, Tensor] = {}
    times: Counter[str] = Counter()

    def take(name: str, out: Tensor) -> None:
        times[name] += 1
        name = name if times[name] == 1 else f"{name}#{times[name]}"
        if name in wanted:
            given[name] = rows(out)[0].cpu().clone()  # what follows may work in place

    net.eval()
    with watched(net.body, take) as end:
        for xb in chunks(x, batch):
            times.clear()
            given.clear()
            h = net.features(xb)
            end()
            ends = {"features": h.cpu(), "logits": local_logits(net, h).cpu()}
            yield given | {name: out for name, out in ends.items() if name in wanted}
