"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data (Li and Zhan, 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Batch, F, Local, Note, Piece, Tensor, setting


@dataclass(frozen=True)
class Restricted(Piece):
    """Weakens the softmax push on classes the client does not own; test logits are unscaled."""

    name, slot, paper = "restricted", "loss", "li2021fedrs"
    alpha: float = setting(0.5, "alpha_RS, scale of absent classes", ge=0, le=1, neutral=1.0)
    soft: bool = setting(False, "scale by the class's share of the largest class")

    def prepare(self, local: Local) -> Note:
        n = local.counts.float()
        owned = n / n.max() if self.soft else (n > 0).float()  # [C]
        return {"a": self.alpha + (1 - self.alpha) * owned}  # a_c = 1 for owned classes, alpha for absent ones

    def criterion(self, batch: Batch, local: Local) -> Tensor:  # CE(a z, y)
        return F.cross_entropy(local.ready["a"] * batch.z, batch.y)
