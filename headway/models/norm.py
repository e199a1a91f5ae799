"""What bodies are made of: normalisation by policy, a named row of layers, the global mean."""

from __future__ import annotations

from torch import Tensor, nn

POLICIES = ("running", "batch", "group")


def norm(channels: int, bn: str) -> nn.Module:
    """The normalisation layer of a policy.

    running  batch statistics in training, running ones in evaluation
    batch    batch statistics always, so a prediction depends on the other images of its batch
    group    statistics of each image alone: nothing to average between clients
    """
    if bn == "running":
        return nn.BatchNorm2d(channels)
    if bn == "batch":
        return nn.BatchNorm2d(channels, track_running_stats=False)
    return nn.GroupNorm(groups(channels), channels)


def groups(channels: int) -> int:
    """The largest number of equal groups, 32 at most, that leaves two channels or more in each.

    With one channel a group, a 1x1 map would be normalised to zero and carry nothing on.
    """
    return next((g for g in range(min(32, channels // 2), 1, -1) if channels % g == 0), 1)


class Stack(nn.Module):
    """Layers in a row, each under its name; `dim` is the width of the features that come out."""

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
    """The mean over all positions: any image size gives the same features.

    A plain mean and not AdaptiveAvgPool2d, whose gradient on a GPU differs from run to run.
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
    """Convolution that keeps the size (but for its stride), normalisation, and the activation if given."""
    conv = nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, groups=c_in if depthwise else 1, bias=False)
    return nn.Sequential(conv, norm(c_out, bn), *([act()] if act else []))


def he_fan_out(module: nn.Module) -> None:
    """Convolutions ~ N(0, sqrt(2 / (k * k * out))), their biases zero; all else stays as it is."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
