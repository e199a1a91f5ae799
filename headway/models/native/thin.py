"""Linear layers for batches of a few samples, in C++: the weight is read once and its gradient is written once."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.models.native.build import capability, library
from headway.models.native.calls import address, differentiable

FEWEST = 2  # smallest batch; torch is faster for one sample
LARGE, OUT = 1 << 16, 32  # smallest numbers of weights and of outputs; for fewer torch is as fast


@cache
def few() -> int:
    """The largest batch; for larger ones torch is as fast."""
    return 12 if capability() == "AVX512" else 10


def applies(batch: int, w: Tensor) -> bool:
    """Whether this product is faster this way."""
    return FEWEST <= batch <= few() and w.numel() >= LARGE and len(w) >= OUT


class Thin(torch.autograd.Function):
    """z = x W^T + b"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w, b)
        rows, z = x.contiguous(), x.new_empty(len(x), len(w))
        kernel().thin_forward(*map(address, (rows, w, b, z)), len(x), *w.shape[::-1])
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable(F.linear, (x, w, b), gz, ctx.needs_input_grad)
        x, gz = x.contiguous(), gz.contiguous()
        gx = gz @ w if ctx.needs_input_grad[0] else None
        gw = None
        if ctx.needs_input_grad[1]:
            gw = torch.empty_like(w, requires_grad=False)
            kernel().thin_weight(*map(address, (x, gz, gw)), len(x), *w.shape[::-1])
        return gx, gw, gz.sum(0) if ctx.needs_input_grad[2] else None


@cache
def kernel() -> Any:
    found = library("thin.cpp")
    found.thin_forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
    found.thin_weight.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
    found.thin_forward.restype = found.thin_weight.restype = None
    return found
