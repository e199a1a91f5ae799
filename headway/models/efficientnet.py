"""EfficientNet-B0 for small images. Initial weights are torch's defaults, as in FedETF's code."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models.mobilenet import stages
from headway.models.norm import GlobalMean, Stack, conv_norm

# expansion, channels, blocks, kernel, stride of the first block
B0 = [
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
]


class SqueezeExcite(nn.Module):
    """Multiplies each channel by a gate in (0, 1) that is computed from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=(2, 3), keepdim=True)  # [B, c, 1, 1]
        gate = torch.sigmoid(self.up(nn.functional.silu(self.down(mean))))  # [B, c, 1, 1]
        return x * gate


def b0(shape: tuple[int, ...], bn: str) -> Stack:
    """Stem of stride 1, the 16 blocks of B0, global mean; no last 1x1 convolution and no dropout.

    The blocks are those of FedETF's code: as in its MobileNetV2, there is a first 1x1 convolution also for an expansion
    of 1, and a 1x1 convolution as shortcut if only the width changes (72,896 parameters more than the standard form).
    That code also adds a block's output to itself at stride 2; here, as in the standard form, nothing is added.
    """
    return Stack(
        320,
        stem=conv_norm(shape[0], 32, bn, kernel=3, act=nn.SiLU),
        **stages(32, B0, bn, act=nn.SiLU, cifar=True, gate=SqueezeExcite),
        pool=GlobalMean(),
    )
