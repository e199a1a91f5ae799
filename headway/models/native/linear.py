"""Linear layers by the product that is fastest here: thin.py for a few samples, oneDNN's where torch's is slower."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.models.native import thin
from headway.models.native.build import capability
from headway.models.native.calls import differentiable, is_plain

FEWEST, LARGE = 13, 1 << 15  # samples and weights from which oneDNN's product is faster


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """F.linear, by the fastest product."""
    if is_plain(x, dims=2) and x.shape[1] == w.shape[1] and w.is_contiguous() and fits(w, x.shape):
        kind = thin.Thin if thin.applies(len(x), w) else Product
        z: Tensor = kind.apply(x, w, b)  # type: ignore[no-untyped-call]
        return z
    return F.linear(x, w, b)


def fits(w: Tensor, x: torch.Size) -> bool:
    """Whether one of these products is faster than torch's for inputs of this shape."""
    if len(x) != 2:
        return False
    return thin.applies(x[0], w) or (x[0] >= FEWEST and w.numel() >= LARGE and onednn_is_faster())


@cache
def onednn_is_faster() -> bool:
    """Whether torch's matrix products, MKL's, leave AVX-512 unused, as they do on AMD's processors."""
    if capability() != "AVX512" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def product(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    """x w^T + b"""
    z: Tensor = torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")
    return z


class Product(torch.autograd.Function):
    """z = x W^T + b"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w, b)
        return product(x, w, b)

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, b = ctx.saved_tensors
        if torch.is_grad_enabled():
            return differentiable(F.linear, (x, w, b), gz, ctx.needs_input_grad)
        gx = product(gz, w.t()) if ctx.needs_input_grad[0] else None
        gw = product(gz.t(), x.t()) if ctx.needs_input_grad[1] else None
        return gx, gw, gz.sum(0) if ctx.needs_input_grad[2] else None
