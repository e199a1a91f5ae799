"""FedNTD: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning (Lee et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, Local, Note, Piece, Tensor, setting, torch
from headway.models.losses import not_true_distillation


@dataclass(frozen=True)
class NTD(Piece):
    """Distils the global model's predictions for the classes that are not the label's."""

    name, slot, paper = "ntd", "reg", "lee2022fedntd"
    beta: float = setting(1.0, "beta", ge=0, neutral=0.0)
    tau: float = setting(1.0, "tau, temperature", gt=0)

    def requires(self) -> set[str]:
        return {"server", "global body"}

    def prepare(self, local: Local) -> Note:
        return {"glob": local.frozen(local.w0)}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # beta tau^2 KL(softmax(q_g/tau) || softmax(q/tau))
        with torch.no_grad():
            glob = local.ready["glob"].logits(batch)  # [B, C]
        return self.beta * not_true_distillation(batch.z, glob, batch.y, self.tau)
