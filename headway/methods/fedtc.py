"""FedTC: A Personalized Federated Learning Method with Two Classifiers (Liu et al., 2023)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from headway.local import Batch, Local, Phase, in_head
from headway.piece import Piece, setting
from headway.tree import Tree


def own(name: str) -> bool:
    return name.startswith("head.own.")


def received(name: str) -> bool:
    return name.startswith("head.received.")


@dataclass(frozen=True)
class FedTC(Piece):
    """theta: extractor; phi_k: the client's own classifier, retained; phi: the received one, fixed during the round.

    Algorithm 1, line 13 overwrites phi_k; text, abstract and Figure 2 retain it, and so does this piece.
    """

    name, slot, paper, personal_as_received = "fedtc", "share", "liu2023fedtc", True
    head_lr: float = setting(0.01, "eta_c / eta_e", gt=0)
    overwrite: bool = setting(False, "the ablation: Algorithm 1, line 13 taken at its word, phi_k <- phi")

    def head(self) -> dict[str, Any]:
        return {"kind": "twin"}

    def share(self, name: str) -> bool:  # phi_k is never overwritten
        return self.overwrite or not own(name)

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(epochs, trains=lambda n: not received(n), lr=lambda n: self.head_lr if in_head(n) else 1.0)]

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        mine = F.cross_entropy(local.net.head.own(batch.h.detach()), batch.y)  # type: ignore[operator]  # Eq. (5): moves phi_k only
        return mine + F.cross_entropy(batch.z, batch.y)  # Eq. (6): moves theta only

    def upload(self, w: Tree, local: Local) -> Tree:  # phi_k goes up in phi's place, to be averaged into the next phi
        phi = local.net.params().only(own).copy()
        return w | Tree({name.replace("head.own.", "head.received."): v for name, v in phi.items()})
