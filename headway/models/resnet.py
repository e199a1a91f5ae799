"""Residual networks of basic blocks. The parameters have torchvision's names, so that its weights can be loaded.

The papers do not give initial weights for the CIFAR forms, which use torch's defaults. resnet18_tv is initialised as
torchvision's, by He normal over fan_out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.models.norm import GlobalMean, Stack, conv_norm, he_fan_out, norm


class BasicBlock(nn.Module):
    """x -> relu(conv3x3(conv3x3(x)) + shortcut(x)); the shortcut is a 1x1 conv when the shape changes."""

    def __init__(self, c_in: int, c_out: int, stride: int, bn: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
        self.bn1 = norm(c_out, bn)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = norm(c_out, bn)
        same = stride == 1 and c_in == c_out
        self.downsample = nn.Identity() if same else conv_norm(c_in, c_out, bn, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return torch.relu(y + self.downsample(x))  # [B, c_out, H / stride, W / stride]


def stages(c_in: int, widths: Sequence[int], depth: int, bn: str) -> dict[str, nn.Module]:
    """The stages layer1, layer2, ... of `depth` blocks each; all but the first halve the image size."""
    layers: dict[str, nn.Module] = {}
    for i, width in enumerate(widths, start=1):
        first = BasicBlock(c_in, width, 1 if i == 1 else 2, bn)
        layers[f"layer{i}"] = nn.Sequential(first, *(BasicBlock(width, width, 1, bn) for _ in range(depth - 1)))
        c_in = width
    return layers


def cifar(shape: tuple[int, ...], bn: str, *, depth: int, widths: Sequence[int]) -> Stack:
    """3x3 stem of the first stage's width, then stages of `depth` blocks, then the global mean."""
    return Stack(
        widths[-1],
        conv1=nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False),
        bn1=norm(widths[0], bn),
        relu=nn.ReLU(),
        **stages(widths[0], widths, depth, bn),
        pool=GlobalMean(),
    )


def imagenet18(shape: tuple[int, ...], bn: str) -> Stack:
    """torchvision's resnet18 without its classifier: 7x7 stem of stride 2 and a max pool."""
    body = Stack(
        512,
        conv1=nn.Conv2d(shape[0], 64, 7, 2, padding=3, bias=False),
        bn1=norm(64, bn),
        relu=nn.ReLU(),
        maxpool=nn.MaxPool2d(3, 2, padding=1),
        **stages(64, (64, 128, 256, 512), 2, bn),
        pool=GlobalMean(),
    )
    he_fan_out(body)
    return body
