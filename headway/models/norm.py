"""Parts of bodies: normalisation layers, a sequence of named layers, the global mean."""

from __future__ import annotations

from torch import Tensor, nn


def norm(channels: int, bn: str) -> nn.Module:
    """The normalisation layer of a policy.

    running  batch statistics in training, running statistics in evaluation
    batch    always batch statistics, so a prediction depends on the other images of its batch
    group    statistics of each image by itself, so clients have no statistics to average
    """
    if bn == "running":
        return nn.BatchNorm2d(channels)
    if bn == "batch":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    return nn.GroupNorm(groups(channels), channels)


def groups(channels: int) -> int:
    """The largest number of equal groups, at most 32, with two channels or more in each.

    With one channel per group, a 1x1 map would be normalised to zero.
    """
    return next((g for g in range(min(32, channels // 2), 1, -1) if channels % g == 0), 1)


class Stack(nn.Module):
    """A sequence of named layers; `dim` is the width of its output features."""

    def __init__(self, dim: int, **layers: nn.Module) -> None:
        super().__init__()
        self.dim = dim
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x


class GlobalMean(nn.Module):
    """The mean over all positions, so that the number of features does not depend on the image size.

    It is a plain mean and not AdaptiveAvgPool2d, whose gradient on a GPU is not deterministic.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))  # [B, c]


def conv_norm(
    c_in: int,
    c_out: int,
    bn: str,
    *,
    kernel: int = 1,
    stride: int = 1,
    depthwise: bool = False,
    act: type[nn.Module] | None = None,
) -> nn.Sequential:
    """Convolution with padding that keeps the size (divided by the stride), normalisation, and `act` if given."""
    conv = nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, groups=c_in if depthwise else 1, bias=False)
    return nn.Sequential(conv, norm(c_out, bn), *([act()] if act else []))


def he_fan_out(module: nn.Module) -> None:
    """Initialise convolutions with N(0, sqrt(2 / (k * k * out))) and their biases with zero; other layers stay."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
