"""clsprox: a proximal term on the classifier alone (No Fear of Heterogeneity, Luo et al., 2021, Table 1)."""

from dataclasses import dataclass

from torch import Tensor

from headway.local import Batch, Local, in_head
from headway.piece import Piece, setting


@dataclass(frozen=True)
class ClsProx(Piece):
    """mu/2 ||W - W^t||^2 over the classifier's weight and bias."""

    name, slot, paper, neutral = "clsprox", "reg", "luo2021ccvr", {"mu": 0.0}
    needs_server = moves_classifier = True
    mu: float = setting(0.001, "mu, strength of the pull", ge=0)

    def proximal(self, name: str) -> float:
        return self.mu if in_head(name) else 0.0

    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return self.mu / 2 * (local.w.only(in_head) - local.w0.only(in_head)).sq_norm()
