"""MobileNet v1 and v2 for small images. Initial weights are torch's defaults; the papers name no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from headway.models.norm import GlobalMean, Stack, conv_norm

V1 = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]

# expansion, channels, blocks, kernel, stride of the first block; the second stage has stride 1 for small images
V2 = [
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 1),
    (6, 32, 3, 3, 2),
    (6, 64, 4, 3, 2),
    (6, 96, 3, 3, 1),
    (6, 160, 3, 3, 2),
    (6, 320, 1, 3, 1),
]


def v1(shape: tuple[int, ...], bn: str) -> Stack:
    """3x3 stem, then 13 pairs of a depthwise 3x3 and a 1x1 convolution, then the global mean."""
    layers: dict[str, nn.Module] = {"stem": conv_norm(shape[0], 32, bn, kernel=3, act=nn.ReLU)}
    c = 32
    for i, (width, stride) in enumerate(V1, start=1):
        depthwise = conv_norm(c, c, bn, kernel=3, stride=stride, depthwise=True, act=nn.ReLU)
        layers[f"pair{i}"] = nn.Sequential(*depthwise, *conv_norm(c, width, bn, act=nn.ReLU))
        c = width
    return Stack(c, **layers, pool=GlobalMean())


class InvertedResidual(nn.Module):
    """1x1 convolution to more channels, depthwise convolution, optional gate, 1x1 convolution without activation.

    There is a shortcut if the block changes neither size nor width. `cifar` is the form of FedETF's code: it has the
    first 1x1 convolution also for an expansion of 1, and a 1x1 convolution as shortcut if only the width changes.
    """

    def __init__(
        self,
        c_in: int,
        c_out: int,
        bn: str,
        *,
        expand: int,
        kernel: int,
        stride: int,
        act: type[nn.Module],
        cifar: bool,
        gate: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        mid = c_in * expand
        layers: list[nn.Module] = []
        if cifar or expand > 1:
            layers += conv_norm(c_in, mid, bn, act=act)
        layers += conv_norm(mid, mid, bn, kernel=kernel, stride=stride, depthwise=True, act=act)
        if gate:
            layers.append(gate(mid))
        self.path = nn.Sequential(*layers, *conv_norm(mid, c_out, bn))
        self.shortcut: nn.Module | None = None
        if stride == 1 and c_in == c_out:
            self.shortcut = nn.Identity()
        elif stride == 1 and cifar:
            self.shortcut = conv_norm(c_in, c_out, bn)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)  # [B, c_out, H / stride, W / stride]
        return y if self.shortcut is None else y + self.shortcut(x)


def stages(
    c: int,
    plan: Sequence[tuple[int, int, int, int, int]],
    bn: str,
    *,
    act: type[nn.Module],
    cifar: bool,
    gate: Callable[[int], nn.Module] | None = None,
) -> dict[str, nn.Module]:
    """The layers stage1, stage2, ..., one per row of the plan; the first has `c` input channels."""
    layers: dict[str, nn.Module] = {}
    for i, (expand, width, depth, kernel, first) in enumerate(plan, start=1):
        blocks = []
        for stride in [first] + [1] * (depth - 1):
            blocks.append(
                InvertedResidual(
                    c, width, bn, expand=expand, kernel=kernel, stride=stride, act=act, cifar=cifar, gate=gate
                )
            )
            c = width
        layers[f"stage{i}"] = nn.Sequential(*blocks)
    return layers


def v2(shape: tuple[int, ...], bn: str, *, cifar: bool) -> Stack:
    """Stem and second stage of stride 1, 17 inverted residuals, 1x1 convolution to 1280 channels, global mean.

    CCVR does not give the strides of its standard form. With those of ImageNet a 32x32 image would be reduced to one
    position, so both forms here use the CIFAR strides; the number of parameters is the same.
    """
    act = nn.ReLU if cifar else nn.ReLU6
    return Stack(
        1280,
        stem=conv_norm(shape[0], 32, bn, kernel=3, act=act),
        **stages(32, V2, bn, act=act, cifar=cifar),
        last=conv_norm(320, 1280, bn, act=act),
        pool=GlobalMean(),
    )
