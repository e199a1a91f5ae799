"""FedRoD: On Bridging Generic and Personalized Federated Learning for Image Classification (Chen and Chao, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core import Batch, F, Local, Note, Piece, Step, Tensor, Tree, setting, torch
from headway.models.head_kinds import Tensors, head_kind, part_tensors
from headway.models.losses import balanced_softmax, log_prior


def private(name: str) -> bool:
    return name.startswith("head.private.")


def dual_tensors(**spec: Any) -> Tensors:
    return part_tensors("generic", **spec) | part_tensors("private", **spec)


@head_kind("dual", two_classifiers=True, tensors=dual_tensors)
def dual(dim: int, classes: int, rng: torch.Generator, **spec: Any) -> Any:
    """A generic classifier G for everybody and the client's own residual P: z_g = G(h), personal z_g + P(h)."""
    from headway.models.heads import PairHead  # which needs torch

    return PairHead(dim, classes, rng, ("generic", "private"), residual=True, **spec)


def hyper_tensors(**spec: Any) -> Tensors:
    return {"inner": True, "outer": True, "frequency": False} | part_tensors("generic", **spec)


@head_kind("hyper", two_classifiers=True, tensors=hyper_tensors)
def hyper(dim: int, classes: int, rng: torch.Generator, **spec: Any) -> Any:
    """P is not kept but made, by a shared MLP, from the client's class frequencies."""
    from headway.methods.parts.hyper_head import HyperHead  # which needs torch

    return HyperHead(dim, classes, rng, **spec)


@dataclass(frozen=True)
class FedRoD(Piece):
    """A generic head G under the balanced softmax, and a private residual P on detached features."""

    name, slot, paper = "fedrod", "share", "chen2022fedrod"
    gamma: float = setting(1.0, "gamma, power of the class prior", ge=0)
    absent: str = setting("floor1", "what a count of zero becomes", choices=("floor1", "eps", "mask"))
    private: str = setting(
        "linear", "P: own, or made from class frequencies by a shared MLP", choices=("linear", "hyper")
    )

    def head(self) -> Note:
        return {"kind": "dual" if self.private == "linear" else "hyper"}

    def share(self, name: str) -> bool:
        return not private(name)

    def equip(self, sent: Note, counts: Tensor | None) -> Tree:
        if self.private == "linear" or counts is None:
            return Tree()
        return Tree({"head.frequency": counts / counts.sum()})  # [C]

    def step(self, step: Step, name: str) -> Step:  # P steps by plain SGD
        return step.plain() if private(name) else step

    def prepare(self, local: Local) -> Note:
        return {"prior": log_prior(local.counts, self.absent)}  # log n_{k,c}, [C]

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        generic = balanced_softmax(batch.z, batch.y, local.ready["prior"], self.gamma)  # moves u and G
        residual = local.net.head.private(batch.h.detach())  # type: ignore[operator]  # z_p = P(h)
        return generic + F.cross_entropy(batch.z.detach() + residual, batch.y)  # moves P only
