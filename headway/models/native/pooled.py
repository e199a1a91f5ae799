"""A convolution and a 2x2 max pool, with a backward pass in C++ that skips gradients of zero.

The pool passes its gradient to one of four outputs of the convolution, so in three quarters of the convolution's
backward pass torch multiplies by zero, and in more of it if a ReLU drops some. Here only the rest is computed.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.native import winograd
from headway.models.native.build import library
from headway.models.native.calls import LAST, address, differentiable, is_plain

HITS = 1 << 13  # the most gradients to sort at once, so that they stay in the cache
DENSE = 4  # tiles of this side multiply so much less that zeros are not worth skipping
ONE, TWO = (1, (1, 1)), (2, (2, 2))


def is_conv(conv: nn.Conv2d) -> bool:
    """Whether the convolution has stride 1 and no groups."""
    ones = {conv.stride, conv.dilation, (conv.groups, conv.groups)} == {(1, 1)}
    return ones and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def is_pool(pool: nn.Module) -> bool:
    """Whether this is a 2x2 max pool of stride 2 without padding."""
    two = pool.kernel_size in TWO and pool.stride in TWO
    plain = pool.padding in (0, (0, 0)) and pool.dilation in ONE
    return two and plain and not pool.ceil_mode and not pool.return_indices


def conv_then_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    """max_pool2d(conv2d(x, w) + b, 2)"""
    if not is_plain(x):
        return torch_conv_then_pool(x, w, b, padding)
    if winograd.tile(x.shape, w.shape, padding) == DENSE:
        return F.max_pool2d(winograd.conv2d(x, w, b, (1, 1), padding, (1, 1), 1), 2)
    y: Tensor = ConvThenPool.apply(x, w, b, padding)  # type: ignore[no-untyped-call]
    return y


def torch_conv_then_pool(x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, ...]) -> Tensor:
    return F.max_pool2d(torch.conv2d(x, w, b, padding=padding), 2)


class ConvThenPool(torch.autograd.Function):
    """y = max_pool2d(conv2d(x, w) + b, 2)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, padding: tuple[int, ...]) -> Tensor:
        side, last = winograd.tile(x.shape, w.shape, padding), x.contiguous(memory_format=LAST)
        z = winograd.forward(last, w, b, side, padding[0]) if side else torch.conv2d(last, w, b, padding=padding)
        y, where = torch.ops.aten.max_pool2d_with_indices(z, [2, 2], [2, 2])
        ctx.save_for_backward(x, w, b, where)
        ctx.padding = padding
        return y  # [B, O, h, w]

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b, where = ctx.saved_tensors
        if torch.is_grad_enabled():
            f = partial(torch_conv_then_pool, padding=ctx.padding)
            return *differentiable(f, (x, w, b), gy, ctx.needs_input_grad[:3]), None
        high, wide = ctx.padding
        x = F.pad(x, (wide, wide, high, high)) if high or wide else x
        x, w, where, gy = (t.contiguous(memory_format=LAST) for t in (x, w, where, gy))
        gx = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        gw = torch.zeros_like(w, requires_grad=False)
        _, out, rows, columns = gy.shape
        cells = rows * columns
        group = max(1, min(len(x), HITS // (cells * out)))
        scratch = torch.empty(group * cells * (4 * out + 4) + out, dtype=torch.int32)
        sizes = [len(x), *x.shape[2:], x.shape[1], out, *w.shape[2:], rows, columns, group]
        kernel()(*map(address, (x, w, gy, where, gx, gw, scratch)), *sizes)
        if gx is not None and (high or wide):
            gx = gx[:, :, high : x.shape[2] - high, wide : x.shape[3] - wide]
        return gx, gw, gy.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None, None


@cache
def kernel() -> Any:
    found = library("pooled.cpp").pooled_backward
    found.argtypes, found.restype = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 10, None
    return found
