"""MOON: Model-Contrastive Federated Learning (Li et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, Local, Note, Piece, Tensor, Tree, setting, torch
from headway.models.losses import contrast


@dataclass(frozen=True)
class Moon(Piece):
    """Pulls the local features towards the global model's and away from this client's last model's."""

    name, slot, paper = "moon", "reg", "li2021moon"
    mu: float = setting(1.0, "mu, weight of the contrast", ge=0, neutral=0.0)
    tau: float = setting(0.5, "tau, temperature of the contrast", gt=0)

    def requires(self) -> set[str]:
        return {"server", "global body", "plain gradient"}

    def init_client(self, w: Tree) -> Note:  # a new client's last model is the global one: no gradient
        return {"w": w}

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        return {}, {"w": w | local.net.stats()}  # the whole model: in eval mode its statistics speak too

    def prepare(self, local: Local) -> Note:
        return {"glob": local.frozen(local.w0), "prev": local.frozen(local.kept["w"])}

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # Eq. (3): near the global h, far from last round's
        with torch.no_grad():
            glob, prev = (local.ready[who].features(batch) for who in ("glob", "prev"))  # [B, d]
        return self.mu * contrast(batch.h, glob, prev, self.tau)
