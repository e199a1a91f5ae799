"""Plain convolutional networks. Initial weights are torch's defaults unless stated otherwise.

The papers write ReLU, then max pool. Both are monotonic, so their order can be exchanged without changing a bit of an
output or a gradient, and a ReLU after the pool has a quarter of the work.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models.norm import GlobalMean, Stack, he_fan_out, norm

VGG11 = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


def _left(shape: tuple[int, ...], *, cut: int, times: int) -> int:
    """Positions left after `times` blocks of a convolution, which reduces each side by `cut`, and a 2x2 max pool."""
    h, w = shape[1:]
    for _ in range(times):
        h, w = (h - cut) // 2, (w - cut) // 2
    return h * w


def mcmahan(shape: tuple[int, ...], bn: str, *, padding: int) -> Stack:
    """Two 5x5 convolutions (32, 64 channels) with max pools, and a linear layer of 512; its input size follows."""
    flat = 64 * _left(shape, cut=4 - 2 * padding, times=2)
    return Stack(
        512,
        conv1=nn.Conv2d(shape[0], 32, 5, padding=padding),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5, padding=padding),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(flat, 512),
        relu3=nn.ReLU(),
    )


def moon(shape: tuple[int, ...], bn: str) -> Stack:
    """LeNet (6, 16 channels; 120, 84 units) and MOON's projection 84-84-256, whose last layer has no activation."""
    return Stack(
        256,
        conv1=nn.Conv2d(shape[0], 6, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(6, 16, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * _left(shape, cut=4, times=2), 120),
        relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84),
        relu4=nn.ReLU(),
        project1=nn.Linear(84, 84),
        relu5=nn.ReLU(),
        project2=nn.Linear(84, 256),
    )


def vgg11(shape: tuple[int, ...], bn: str, *, fc: bool) -> Stack:
    """The eight 3x3 convolutions of VGG11 without normalisation; with `fc`, followed by two linear layers of 512.

    The code of both papers initialises the convolutions with N(0, sqrt(2 / (k * k * out))) and biases with zero. A
    32x32 image is reduced to one position; the positions of a larger one are averaged, so d is always 512.
    """
    convs: list[nn.Module] = []
    c = shape[0]
    for step in VGG11:
        if isinstance(step, int):
            convs += [nn.Conv2d(c, step, 3, padding=1), nn.ReLU()]
            c = step
        else:
            convs.append(nn.MaxPool2d(2))
    layers: dict[str, nn.Module] = {"features": nn.Sequential(*convs), "pool": GlobalMean()}
    if fc:
        layers |= {
            "fc1": nn.Linear(c, 512),
            "relu1": nn.ReLU(),
            "fc2": nn.Linear(512, 512),
            "relu2": nn.ReLU(),
        }
    body = Stack(512, **layers)
    he_fan_out(body)
    return body


def small_normal(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Initialise the classifier's weight with N(0, 0.01) and return it (vgg11_nofc)."""
    with torch.no_grad():
        return weight.normal_(0.0, 0.01, generator=generator)


def cnn4(shape: tuple[int, ...], bn: str) -> Stack:
    """Four blocks of a 3x3 convolution to 64 channels, normalisation, ReLU and max pool, then flatten.

    d = 64 * (H // 16) * (W // 16): 256 for 32x32 images.
    """
    layers: dict[str, nn.Module] = {}
    c = shape[0]
    for i in range(1, 5):
        conv = nn.Conv2d(c, 64, 3, padding=1)
        layers[f"block{i}"] = nn.Sequential(conv, norm(64, bn), nn.ReLU(), nn.MaxPool2d(2))
        c = 64
    return Stack(64 * _left(shape, cut=0, times=4), **layers, flatten=nn.Flatten())
