"""A convolution, perhaps a ReLU, and a max pool, with a backward pass in C++ that skips gradients of zero.

A 2x2 max pool passes its gradient to one of four outputs of the convolution, so in three quarters of the convolution's
backward pass torch multiplies by zero. Here only the other quarter is computed. The forward pass and evaluation are
torch's.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.native.build import library
from headway.models.norm import Stack

LAST = torch.channels_last
HITS = 1 << 13  # the most gradients to sort at once, so that they stay in the cache


def rows(body: nn.Module) -> list[nn.Module]:
    """The body's modules that only run their layers in sequence, and that contain such a pair."""
    found = (row for row in body.modules() if type(row) in ROWS)
    return [row for row in found if any(united(layers(row)[i:]) for i in range(len(row._modules)))]


def layers(row: nn.Module) -> list[nn.Module]:
    """The layers in the order in which they run; one that is registered twice runs twice."""
    return [layer for layer in row._modules.values() if layer is not None]


def pair(conv: nn.Module, pool: nn.Module) -> bool:
    """Whether these are a convolution of stride 1 and a 2x2 max pool, both without hooks."""
    if type(conv) is not nn.Conv2d or type(pool) is not nn.MaxPool2d or has_hooks(conv) or has_hooks(pool):
        return False
    if "weight" not in conv._parameters:  # it is computed in every pass, as by weight_norm
        return False
    ones = {conv.stride, conv.dilation, (conv.groups, conv.groups)} == {(1, 1)}
    two = all(size in (2, (2, 2)) for size in (pool.kernel_size, pool.stride))
    plain = not pool.padding and pool.dilation == 1 and not pool.ceil_mode and not pool.return_indices
    return ones and two and plain and conv.padding_mode == "zeros" and not isinstance(conv.padding, str)


def united(row: list[nn.Module]) -> int:
    """How many of the first layers are computed as one: 2, 3 if a ReLU stands before the pool, or 0."""
    relu = len(row) > 2 and type(row[1]) is nn.ReLU and not has_hooks(row[1])
    if relu and pair(row[0], row[2]):
        return 3
    return 2 if len(row) > 1 and pair(row[0], row[1]) else 0


def has_hooks(layer: nn.Module) -> bool:
    """Whether the layer has forward or backward hooks."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks)


def through(row: nn.Module, x: Tensor) -> Tensor:
    """The output of all layers, with each pair computed as one.

    A ReLU before the pool runs after it: max_pool(relu(z)) = relu(max_pool(z)), with the same gradient.
    """
    left = layers(row)
    while left:
        count = united(left)
        if count and supported(left[0], x):
            x = conv_then_pool(cast(nn.Conv2d, left[0]), x)
            x = left[1](x) if count == 3 else x
            left = left[count:]
        else:
            x = left.pop(0)(x)
    return x


def supported(conv: nn.Module, x: Tensor) -> bool:
    """Whether this is a training pass over a batch in float32 on the CPU."""
    kind = x.ndim == 4 and x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return kind and conv.training and torch.is_grad_enabled()


def conv_then_pool(conv: nn.Conv2d, x: Tensor) -> Tensor:
    assert not isinstance(conv.padding, str)
    high, wide = conv.padding
    x = F.pad(x, (wide, wide, high, high)) if high or wide else x
    y: Tensor = ConvThenPool.apply(x, conv.weight, conv.bias)  # type: ignore[no-untyped-call]
    return y


class PooledStack(Stack):
    def forward(self, x: Tensor) -> Tensor:
        return through(self, x)


class PooledSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return through(self, x)


ROWS: dict[type[nn.Module], type[nn.Module]] = {Stack: PooledStack, nn.Sequential: PooledSequential}


class ConvThenPool(torch.autograd.Function):
    """y = max_pool2d(conv2d(x, w) + b, 2)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        x = x.contiguous(memory_format=LAST)
        y, where = torch.ops.aten.max_pool2d_with_indices(F.conv2d(x, w, b), [2, 2], [2, 2])
        ctx.save_for_backward(x, w, where)
        ctx.bias = b is not None
        return y  # [B, O, h, w]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, w, where = (t.contiguous(memory_format=LAST) for t in ctx.saved_tensors)
        gy = gy.contiguous(memory_format=LAST)
        gx = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        gw = torch.zeros_like(w)
        _, out, rows, columns = gy.shape
        cells = rows * columns
        group = max(1, min(len(x), HITS // (cells * out)))
        scratch = torch.empty(group * cells * (4 * out + 4) + out, dtype=torch.int32)
        given = [0 if t is None else t.data_ptr() for t in (x, w, gy, where, gx, gw, scratch)]
        sizes = [len(x), *x.shape[2:], x.shape[1], out, *w.shape[2:], rows, columns, group]
        kernel()(*given, *sizes)
        return gx, gw, gy.sum((0, 2, 3)) if ctx.bias else None


@cache
def kernel() -> Any:
    found = library("pooled.cpp").pooled_backward
    found.argtypes, found.restype = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 10, None
    return found
