"""FedProto's prediction: the class of the nearest global prototype."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headway.models.heads import Head


class NearestHead(Head):
    """A linear classifier to train by, and global prototypes P_c to predict by: z_c = -||h - P_c||^2 where known."""

    own_prediction = True
    proto: Tensor
    known: Tensor

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        super().__init__(dim, classes, rng, **spec)
        self.register_buffer("proto", torch.zeros(classes, dim))  # [C, d]
        self.register_buffer("known", torch.zeros(classes))  # 1 where a prototype exists

    def personal(self, h: Tensor) -> Tensor:
        if not self.known.any():
            return self.forward(h)  # before the first round there is nothing to be near to
        gap = torch.cdist(h, self.proto).square()  # [B, C]
        return (-gap).masked_fill(self.known == 0, -math.inf)

    def predictor(self, personal: bool) -> nn.Module:
        return Nearest(self) if personal and bool(self.known.any()) else self


class Nearest(nn.Module):
    """z_c = -||h - P_c||^2 where the prototype is known, written out: not every runtime has cdist."""

    proto: Tensor
    unknown: Tensor

    def __init__(self, head: NearestHead):
        super().__init__()
        self.register_buffer("proto", head.proto.detach().clone())  # [C, d]
        self.register_buffer("unknown", head.known == 0)  # [C]

    def forward(self, h: Tensor) -> Tensor:
        gap = (h[:, None, :] - self.proto).square().sum(2)  # [B, C]
        return (-gap).masked_fill(self.unknown, -torch.inf)
