"""FedMMD: Two-Stream Federated Learning (Yao et al., 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, Local, Note, Piece, Tensor, setting, torch
from headway.models.losses import mmd_squared


@dataclass(frozen=True)
class MMD(Piece):
    """Keeps the features of a batch distributed as the global model's are."""

    name, slot, paper = "mmd", "reg", "yao2018fedmmd"
    weight: float = setting(0.01, "lambda", ge=0, also="lambda", neutral=0.0)

    def requires(self) -> set[str]:
        return {"server", "global body"}

    def prepare(self, local: Local) -> Note:
        return {"glob": local.frozen(local.w0)}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # lambda MMD^2(h, h_g)
        with torch.no_grad():
            glob = local.ready["glob"].features(batch)  # [B, d]
        return self.weight * mmd_squared(batch.h, glob)
