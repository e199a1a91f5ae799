"""Perceptrons: they flatten their input, so they take any shape. Initial weights are torch's defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from headway.models.norm import Stack


def mlp(shape: tuple[int, ...], bn: str, *, widths: Sequence[int]) -> Stack:
    """flatten, then a linear layer and ReLU for every width. Nothing is normalised, whatever `bn` says."""
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    d = math.prod(shape)
    for i, width in enumerate(widths, start=1):
        layers[f"fc{i}"] = nn.Linear(d, width)
        layers[f"relu{i}"] = nn.ReLU()
        d = width
    return Stack(d, **layers)
