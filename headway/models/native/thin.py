"""Linear layers for batches of a few samples, in C++: the weight is read once and its gradient is written once."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.native.build import capability, library

FEWEST = 2  # smallest batch; torch is faster for one sample
LARGE, OUT = 1 << 16, 32  # smallest numbers of weights and of outputs; for fewer torch is as fast


@cache
def few() -> int:
    """The largest batch; for larger ones torch is as fast."""
    return 12 if capability() == "AVX512" else 10


def layers(body: nn.Module, batch: int) -> list[nn.Linear]:
    """The linear layers of the body that are faster this way at this batch size."""
    found = [m for m in body.modules() if type(m) is nn.Linear] if FEWEST <= batch <= few() else []
    return [m for m in found if m.weight.numel() >= LARGE and len(m.weight) >= OUT and "weight" in m._parameters]


class ThinLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        plain = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu") and self.weight.is_contiguous()
        fits = x.ndim == 2 and FEWEST <= len(x) <= few() and x.shape[1] == self.in_features
        trains = x.dtype == self.weight.dtype == torch.float32 and self.training and torch.is_grad_enabled()
        if not (plain and fits and trains):
            return super().forward(x)
        z: Tensor = Thin.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return z  # [B, O]


class Thin(torch.autograd.Function):
    """z = x W^T + b"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, w)
        z = x.new_empty(len(x), len(w))
        bias = 0 if b is None else b.data_ptr()
        kernel().thin_forward(x.data_ptr(), w.data_ptr(), bias, z.data_ptr(), len(x), *w.shape[::-1])
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, w = ctx.saved_tensors
        gz = gz.contiguous()
        gx = gz @ w if ctx.needs_input_grad[0] else None
        gw = torch.empty_like(w, requires_grad=False)
        kernel().thin_weight(x.data_ptr(), gz.data_ptr(), gw.data_ptr(), len(x), *w.shape[::-1])
        return gx, gw, gz.sum(0) if ctx.needs_input_grad[2] else None


@cache
def kernel() -> Any:
    found = library("thin.cpp")
    found.thin_forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
    found.thin_weight.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
    found.thin_forward.restype = found.thin_weight.restype = None
    return found
