"""Multilayer perceptrons: they flatten their input, so its shape is arbitrary. Initial weights are torch's defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from headway.models.norm import Stack


def mlp(shape: tuple[int, ...], bn: str, *, widths: Sequence[int]) -> Stack:
    """flatten, then a linear layer and ReLU per width. There is no normalisation, so `bn` has no effect."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    d = math.prod(shape)
    for i, width in enumerate(widths, start=1):
        layers[f"fc{i}"] = nn.Linear(d, width)
        layers[f"relu{i}"] = nn.ReLU()
        d = width
    return Stack(d, **layers)
