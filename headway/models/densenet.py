"""DenseNet-121 in its CIFAR form. Initial weights are torch's defaults; the papers name no others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models.norm import GlobalMean, Stack, norm

GROWTH = 32
BLOCKS = (6, 12, 24, 16)


class Dense(nn.Module):
    """x -> [new, x]: 32 new channels, computed through a 1x1 bottleneck of 128, before the input channels."""

    def __init__(self, c_in: int, bn: str) -> None:
        super().__init__()
        self.new = nn.Sequential(
            norm(c_in, bn),
            nn.ReLU(),
            nn.Conv2d(c_in, 4 * GROWTH, 1, bias=False),
            norm(4 * GROWTH, bn),
            nn.ReLU(),
            nn.Conv2d(4 * GROWTH, GROWTH, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.new(x), x], dim=1)  # [B, c_in + 32, H, W]


def transition(c_in: int, c_out: int, bn: str) -> nn.Sequential:
    """1x1 convolution to `c_out` channels and 2x2 average pooling."""
    return nn.Sequential(norm(c_in, bn), nn.ReLU(), nn.Conv2d(c_in, c_out, 1, bias=False), nn.AvgPool2d(2))


def densenet121(shape: tuple[int, ...], bn: str) -> Stack:
    """3x3 stem without a pool, blocks of 6-12-24-16 layers, channels halved between blocks."""
    c = 2 * GROWTH
    layers: dict[str, nn.Module] = {"conv": nn.Conv2d(shape[0], c, 3, padding=1, bias=False)}
    for i, depth in enumerate(BLOCKS, start=1):
        layers[f"block{i}"] = nn.Sequential(*(Dense(c + j * GROWTH, bn) for j in range(depth)))
        c += depth * GROWTH
        if i < len(BLOCKS):
            layers[f"transition{i}"] = transition(c, c // 2, bn)
            c //= 2
    return Stack(c, **layers, norm=norm(c, bn), relu=nn.ReLU(), pool=GlobalMean())
