"""FedMMD: Two-Stream Federated Learning (Yao et al., 2018)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.local import Batch, Local
from headway.losses import mmd_squared
from headway.piece import Piece, setting


@dataclass(frozen=True)
class MMD(Piece):
    """Keeps the features of a batch distributed as the global model's are."""

    name, slot, paper, neutral = "mmd", "reg", "yao2018fedmmd", {"weight": 0.0}
    also = {"lambda": "weight"}  # noqa: RUF012
    needs_server = needs_global = True
    weight: float = setting(0.01, "lambda", ge=0)

    def prepare(self, local: Local) -> dict[str, Any]:
        return {"glob": local.frozen(local.w0)}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # lambda MMD^2(h, h_g)
        with torch.no_grad():
            glob = local.ready["glob"].features(batch.x)  # [B, d]
        return self.weight * mmd_squared(batch.h, glob)
