"""Convolutions by Winograd's algorithm: 36 multiplications where the definition has 144 (3x3) or 100 (5x5)."""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.native.build import library
from headway.models.native.calls import LAST, address, differentiable, is_plain

FEWEST = 16  # channels and filters; with fewer, reading and writing tiles costs what the multiplications save
GROUP, LARGE_GROUP, LARGE = 48, 96, 1 << 17  # tiles at a time; more for layers of so many channels x filters
TILES = {(4, 3): 24, (2, 3): 24, (2, 5): 24}  # the fewest tiles, by tile and filter
Pair = tuple[int, ...]


def conv2d(
    x: Tensor, w: Tensor, b: Tensor | None, stride: Pair, padding: Pair | str, dilation: Pair, groups: int
) -> Tensor:
    """torch.conv2d, by this algorithm where it is faster."""
    plain = set(stride) == set(dilation) == {1} and groups == 1 and not isinstance(padding, str)
    if plain and is_plain(x) and (side := tile(x.shape, w.shape, padding)):
        y: Tensor = Winograd.apply(x, w, b, side, padding[0])  # type: ignore[no-untyped-call]
        return y
    return torch.conv2d(x, w, b, stride, padding, dilation, groups)


def fits(conv: nn.Module, x: torch.Size) -> bool:
    """Whether a convolution is computed by this algorithm for inputs of this shape."""
    if not isinstance(conv, nn.Conv2d) or isinstance(conv.padding, str) or conv.groups != 1:
        return False
    return {*conv.stride, *conv.dilation} == {1} and bool(tile(x, conv.weight.shape, conv.padding))


@cache
def tile(x: torch.Size, w: torch.Size, padding: Pair) -> int:
    """The side of the tiles for these shapes; 0 where torch is as fast."""
    batch, channels, high, wide = x
    filters, _, side, other = w
    if side != other or side not in (3, 5) or padding[0] != padding[-1] or not 0 <= padding[0] < side:
        return 0
    high, wide = high + 2 * padding[0] - side + 1, wide + 2 * padding[0] - side + 1
    if min(channels, filters) < FEWEST or min(high, wide) < 1:
        return 0
    m = 2 if side == 5 or max(high, wide) <= 2 else 4
    tiles = batch * -(-high // m) * -(-wide // m)
    filled = batch * high * wide / (tiles * m * m)  # the share of the tiles' output that exists
    return m if tiles >= TILES[m, side] and filled > 0.4 else 0


def forward(x: Tensor, w: Tensor, b: Tensor | None, m: int, padding: int, turned: bool = False) -> Tensor:
    """The convolution; `turned`: that of a gradient by the filters of the layer, turned by 180 degrees."""
    x, w = x.contiguous(memory_format=LAST), w.contiguous(memory_format=LAST)
    batch, channels, high, wide = x.shape
    filters, side = w.shape[1 if turned else 0], w.shape[2]
    y = torch.empty((batch, filters, high + 2 * padding - side + 1, wide + 2 * padding - side + 1), memory_format=LAST)
    sizes, group = (batch, high, wide, channels, filters, padding), group_of(channels, filters)
    memory = scratch(m, side, channels, filters, group)
    kernel().winograd_forward(*map(address, (x, w, b, y, memory)), m, side, *sizes, group, turned)
    return y


def weight_gradient(x: Tensor, gy: Tensor, w: Tensor, m: int, padding: int) -> Tensor:
    x, gy = x.contiguous(memory_format=LAST), gy.contiguous(memory_format=LAST)
    batch, channels, high, wide = x.shape
    filters, side = len(w), w.shape[2]
    gw = torch.empty_like(w, memory_format=LAST, requires_grad=False)
    sizes, group = (batch, high, wide, channels, filters, padding), group_of(channels, filters)
    memory = scratch(m, side, channels, filters, group)
    kernel().winograd_gradient(*map(address, (x, gy, gw, memory)), m, side, *sizes, group)
    return gw


def group_of(channels: int, filters: int) -> int:
    return LARGE_GROUP if channels * filters >= LARGE else GROUP


def scratch(m: int, side: int, channels: int, filters: int, group: int) -> Tensor:
    return torch.empty(kernel().winograd_numbers(m, side, channels, filters, group))


class Winograd(torch.autograd.Function):
    """y = conv2d(x, w) + b"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, m: int, padding: int) -> Tensor:
        ctx.save_for_backward(x, w, b)
        ctx.m, ctx.padding = m, padding
        return forward(x, w, b, m, padding)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b = ctx.saved_tensors
        m, padding, needed = ctx.m, ctx.padding, ctx.needs_input_grad
        if torch.is_grad_enabled():
            own = differentiable(partial(torch.conv2d, padding=padding), (x, w, b), gy, needed[:3])
            return *own, None, None
        gx = forward(gy, w, None, m, w.shape[2] - 1 - padding, turned=True) if needed[0] else None
        gw = weight_gradient(x, gy, w, m, padding) if needed[1] else None
        return gx, gw, gy.sum((0, 2, 3)) if needed[2] else None, None, None


@cache
def kernel() -> Any:
    found = library("winograd.cpp")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.winograd_forward.argtypes, found.winograd_forward.restype = [pointer] * 5 + [number] * 10, None
    found.winograd_gradient.argtypes, found.winograd_gradient.restype = [pointer] * 4 + [number] * 9, None
    found.winograd_numbers.argtypes, found.winograd_numbers.restype = [number] * 5, number
    return found
