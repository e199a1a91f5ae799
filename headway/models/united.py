"""Calls that stand for several layers of a body: for prediction by torch alone, else with native code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.graph import United
from headway.models.native import linear, norm, pooled, winograd


@dataclass(frozen=True)
class Conv(United):
    """A convolution, in prediction with the normalisation after it folded in, a term that is added, and a ReLU."""

    kernels = ("winograd",)

    conv: str
    norm: str = ""
    relu: bool = False
    native: bool = False

    @property
    def first(self) -> str:
        return self.conv

    def bind(self, body: nn.Module) -> Callable[..., Tensor]:
        conv, after = body.get_submodule(self.conv), body.get_submodule(self.norm) if self.norm else None
        assert isinstance(conv, nn.Conv2d)
        folded = Folded(conv, after)
        apply = winograd.conv2d if self.native else torch.conv2d

        def run(x: Tensor, other: Tensor | None = None) -> Tensor:
            w, b = folded.tensors()
            y = apply(x, w, b, conv.stride, conv.padding, conv.dilation, conv.groups)
            if other is not None:
                y = y.add_(other) if y.shape == other.shape else y + other
            return y.relu_() if self.relu else y

        return run

    def covers(self, layer: nn.Module, x: torch.Size) -> bool:
        return winograd.fits(layer, x)


class Folded:
    """The weight and bias of a convolution with the normalisation after it, computed anew when one of them changed."""

    def __init__(self, conv: nn.Conv2d, after: nn.Module | None) -> None:
        self.conv, self.after = conv, after
        self.versions: tuple[Any, ...] = ()
        self.known: tuple[Tensor, Tensor | None] | None = None

    def tensors(self) -> tuple[Tensor, Tensor | None]:
        conv, after = self.conv, self.after
        if after is None:
            return conv.weight, conv.bias
        read = (conv.weight, conv.bias, after.weight, after.bias, after.running_mean, after.running_var)
        versions = tuple(None if t is None else (t.data_ptr(), t._version) for t in read)  # type: ignore[operator]
        if self.known is None or versions != self.versions:
            self.known, self.versions = fold(*read, eps=float(after.eps)), versions  # type: ignore[arg-type]
        return self.known


@torch.no_grad()
def fold(
    w: Tensor, b: Tensor | None, gamma: Tensor | None, beta: Tensor | None, mean: Tensor, var: Tensor, *, eps: float
) -> tuple[Tensor, Tensor]:
    """(w s, (b - mean) s + beta) with s = gamma / sqrt(var + eps) for each filter."""
    s = torch.rsqrt(var + eps)
    s = s if gamma is None else s * gamma
    shifted = -mean if b is None else b - mean
    return w * s.view(-1, 1, 1, 1), shifted * s if beta is None else shifted * s + beta


@dataclass(frozen=True)
class NormThen(United):
    """A batch normalisation in training, a term that is added, and a ReLU."""

    kernels = ("norm",)

    norm: str
    relu: bool

    @property
    def first(self) -> str:
        return self.norm

    def bind(self, body: nn.Module) -> Callable[..., Tensor]:
        layer = body.get_submodule(self.norm)
        assert isinstance(layer, nn.BatchNorm2d)
        return lambda x, other=None: norm.normalised(layer, x, other, self.relu)


@dataclass(frozen=True)
class ConvPool(United):
    """A convolution of stride 1, a 2x2 max pool, and perhaps a ReLU between them, which then runs after the pool."""

    kernels = ("winograd", "pooled")

    conv: str
    relu: bool

    @property
    def first(self) -> str:
        return self.conv

    def bind(self, body: nn.Module) -> Callable[..., Tensor]:
        conv = body.get_submodule(self.conv)
        assert isinstance(conv, nn.Conv2d)

        def run(x: Tensor) -> Tensor:
            y = pooled.conv_then_pool(x, conv.weight, conv.bias, conv.padding)  # type: ignore[arg-type]
            return y.relu() if self.relu else y

        return run

    def covers(self, layer: nn.Module, x: torch.Size) -> bool:
        return True


@dataclass(frozen=True)
class Linear(United):
    kernels = ("thin",)
    layer: str

    @property
    def first(self) -> str:
        return self.layer

    def bind(self, body: nn.Module) -> Callable[..., Tensor]:
        layer = body.get_submodule(self.layer)
        assert isinstance(layer, nn.Linear)
        return lambda x: linear.linear(x, layer.weight, layer.bias)

    def covers(self, layer: nn.Module, x: torch.Size) -> bool:
        return isinstance(layer, nn.Linear) and linear.fits(layer.weight, x)
