"""FedRoD: On Bridging Generic and Personalized Federated Learning for Image Classification (Chen and Chao, 2022)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from headway.local import Batch, Local, Phase
from headway.losses import balanced_softmax, log_prior
from headway.piece import Piece, setting
from headway.tree import Tree


def private(name: str) -> bool:
    return name.startswith("head.private.")


@dataclass(frozen=True)
class FedRoD(Piece):
    """A generic head G under the balanced softmax, and a private residual P on detached features."""

    name, slot, paper, personal_as_received = "fedrod", "share", "chen2022fedrod", True
    gamma: float = setting(1.0, "gamma, power of the class prior", ge=0)
    absent: str = setting("floor1", "what a count of zero becomes", choices=("floor1", "eps", "mask"))
    private: str = setting(
        "linear", "P: own, or made from class frequencies by a shared MLP", choices=("linear", "hyper")
    )

    def head(self) -> dict[str, Any]:
        return {"kind": "dual" if self.private == "linear" else "hyper"}

    def share(self, name: str) -> bool:
        return not private(name)

    def equip(self, sent: dict[str, Any], counts: Tensor | None) -> Tree:
        if self.private == "linear" or counts is None:
            return Tree()
        return Tree({"head.frequency": counts / counts.sum()})  # [C]

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(epochs, plain=private)]  # P steps by plain SGD

    def prepare(self, local: Local) -> dict[str, Any]:
        return {"prior": log_prior(local.counts, self.absent)}  # log n_{k,c}, [C]

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        generic = balanced_softmax(batch.z, batch.y, local.ready["prior"], self.gamma)  # moves u and G
        residual = local.net.head.residual(batch.h.detach())  # type: ignore[operator]  # z_p = P(h)
        return generic + F.cross_entropy(batch.z.detach() + residual, batch.y)  # moves P only
