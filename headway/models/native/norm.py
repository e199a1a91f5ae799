"""Batch normalisation in training with the sum and the ReLU that follow it, in two passes over the numbers."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.native.build import library
from headway.models.native.calls import LAST, address, differentiable, is_plain

MULTIPLE = 4  # of channels; others have no vector that divides them
FEWEST = 1 << 15  # numbers; with fewer, calling native code takes as long as torch


def normalised(layer: nn.BatchNorm2d, x: Tensor, other: Tensor | None, relu: bool) -> Tensor:
    """relu(layer(x) + other), by the layer itself where native code does not apply."""
    if not applies(layer, x, other):
        y: Tensor = layer(x)
        y = y if other is None else y + other
        return y.relu() if relu else y
    y, mean, var = Norm.apply(x, other, layer.weight, layer.bias, layer.eps, relu)  # type: ignore[no-untyped-call]
    if layer.track_running_stats and layer.running_mean is not None and layer.running_var is not None:
        update(layer, mean, var, x.numel() // x.shape[1])
    return y


def applies(layer: nn.BatchNorm2d, x: Tensor, other: Tensor | None) -> bool:
    known = layer.training and layer.momentum is not None and layer.num_features % MULTIPLE == 0
    values = x.numel() // max(1, x.shape[1]) > 1  # per channel; torch refuses a single one
    return (
        known
        and is_plain(x)
        and values
        and x.numel() >= FEWEST
        and (other is None or (other.shape == x.shape and is_plain(other)))
    )


@torch.no_grad()
def update(layer: nn.BatchNorm2d, mean: Tensor, var: Tensor, n: int) -> None:
    """running <- (1 - momentum) running + momentum batch, with the variance over n - 1."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    layer.running_mean.lerp_(mean, layer.momentum)  # type: ignore[arg-type]
    layer.running_var.lerp_(var * (n / (n - 1)), layer.momentum)  # type: ignore[arg-type]
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)


class Norm(torch.autograd.Function):
    """y = relu((x - mean) / sqrt(var + eps) w + b + other); also the batch's mean and variance, without gradients"""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, other: Tensor | None, w: Tensor | None, b: Tensor | None, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        last, added = x.contiguous(memory_format=LAST), None if other is None else other.contiguous(memory_format=LAST)
        y, channels = torch.empty_like(last), x.shape[1]
        mean, var, inverse, scale, shift = x.new_empty((5, channels))
        totals = torch.empty(2 * channels, dtype=torch.float64)
        kernel().norm_forward(
            *map(address, (last, added, w, b, y, mean, var, inverse, scale, shift, totals)),
            x.numel() // channels, channels, eps, relu,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu and other is not None else None, w, b, other, scale, shift, mean, inverse)
        ctx.eps, ctx.relu, ctx.summed = eps, relu, other is not None
        ctx.mark_non_differentiable(mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Any, gy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, y, w, b, other, scale, shift, mean, inverse = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if torch.is_grad_enabled():
            return *differentiable(plain(ctx.eps, ctx.relu), (x, other, w, b), gy, needed[:4]), None, None
        x, gy, channels = x.contiguous(memory_format=LAST), gy.contiguous(memory_format=LAST), x.shape[1]
        gx = torch.empty_like(x)
        gother = torch.empty_like(x) if y is not None else gy if ctx.summed else None
        gw, gb, *factors = x.new_empty((4, channels))
        totals = torch.empty(2 * channels, dtype=torch.float64)
        kernel().norm_backward(
            *map(address, (gy, x, y, scale, shift, mean, inverse, gx, gother, gw, gb, factors[0], totals)),
            x.numel() // channels, channels, ctx.relu,
        )  # fmt: skip
        grads = (gx, gother, gw, gb)
        return *(g if need else None for g, need in zip(grads, needed[:4], strict=True)), None, None


def plain(eps: float, relu: bool) -> Any:
    """The same function of (x, other, w, b) in torch's terms."""

    def f(x: Tensor, other: Tensor | None, w: Tensor | None, b: Tensor | None) -> Tensor:
        z = F.batch_norm(x, None, None, w, b, training=True, eps=eps)
        z = z if other is None else z + other
        return z.relu() if relu else z

    return f


@cache
def kernel() -> Any:
    found = library("norm.cpp")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.norm_forward.argtypes = [pointer] * 11 + [number, number, ctypes.c_double, number]
    found.norm_backward.argtypes = [pointer] * 13 + [number] * 3
    found.norm_forward.restype = found.norm_backward.restype = None
    return found
