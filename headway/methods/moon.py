"""MOON: Model-Contrastive Federated Learning (Li et al., 2021)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.local import Batch, Local
from headway.losses import contrast
from headway.piece import Piece, setting
from headway.tree import Tree


@dataclass(frozen=True)
class Moon(Piece):
    """Pulls the local features towards the global model's and away from this client's last model's."""

    name, slot, paper, neutral = "moon", "reg", "li2021moon", {"mu": 0.0}
    needs_server = needs_global = True
    mu: float = setting(1.0, "mu, weight of the contrast", ge=0)
    tau: float = setting(0.5, "tau, temperature of the contrast", gt=0)

    def init_client(self, w: Tree) -> dict[str, Any]:  # a new client's last model is the global one: no gradient
        return {"w": w}

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, {"w": w | local.net.stats()}  # the whole model: in eval mode its statistics speak too

    def prepare(self, local: Local) -> dict[str, Any]:
        return {"glob": local.frozen(local.w0), "prev": local.frozen(local.kept["w"])}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (3): near the global h, far from last round's
        with torch.no_grad():
            glob, prev = (local.ready[who].features(batch.x) for who in ("glob", "prev"))  # [B, d]
        return self.mu * contrast(batch.h, glob, prev, self.tau)
