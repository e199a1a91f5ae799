"""FedNTD: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning (Lee et al., 2022)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.local import Batch, Local
from headway.losses import not_true_distillation
from headway.piece import Piece, setting


@dataclass(frozen=True)
class NTD(Piece):
    """Distils the global model's opinion on the classes that are not the label's."""

    name, slot, paper, neutral = "ntd", "reg", "lee2022fedntd", {"beta": 0.0}
    needs_server = needs_global = True
    beta: float = setting(1.0, "beta", ge=0)
    tau: float = setting(1.0, "tau, temperature", gt=0)

    def prepare(self, local: Local) -> dict[str, Any]:
        return {"glob": local.frozen(local.w0)}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # beta tau^2 KL(softmax(q_g/tau) || softmax(q/tau))
        with torch.no_grad():
            glob = local.ready["glob"](batch.x)  # [B, C]
        return self.beta * not_true_distillation(batch.z, glob, batch.y, self.tau)
