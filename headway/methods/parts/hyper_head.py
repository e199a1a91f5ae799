"""FedRoD's classifier whose private part is made by a shared network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headway.models.heads import Head, OwnPrediction, uniform


class HyperHead(nn.Module):
    """z_g = G(h); P is made, by a shared MLP, from the client's class frequencies: C -> d -> C d."""

    own_prediction = True
    frequency: Tensor  # [C]
    spec: dict[str, Any]

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        super().__init__()
        self.generic = Head(dim, classes, rng, **spec)
        self.inner = nn.Parameter(uniform(classes, dim, rng))  # [d, C]
        self.outer = nn.Parameter(uniform(dim, classes * dim, rng))  # [C d, d]
        self.register_buffer("frequency", torch.full((classes,), 1 / classes))

    @property
    def shared(self) -> Head:
        return self.generic

    @property
    def trained(self) -> Head:
        return self.generic

    def private(self, h: Tensor) -> Tensor:
        made = self.outer @ torch.relu(self.inner @ self.frequency)  # [C d]
        return h @ made.view(len(self.frequency), -1).T  # [B, C]

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.generic(h)
        return z

    def personal(self, h: Tensor) -> Tensor:
        return self.forward(h) + self.private(h)

    def predictor(self, personal: bool) -> nn.Module:
        return OwnPrediction(self) if personal else self.generic
