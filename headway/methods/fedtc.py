"""FedTC: A Personalized Federated Learning Method with Two Classifiers (Liu et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.core import Batch, F, Local, Note, Phase, Piece, Step, Tensor, Tree, in_head, setting, torch
from headway.models.head_kinds import Tensors, head_kind, part_tensors


def own(name: str) -> bool:
    return name.startswith("head.own.")


def received(name: str) -> bool:
    return name.startswith("head.received.")


def tensors(**spec: Any) -> Tensors:
    return part_tensors("received", **spec) | part_tensors("own", **spec)


@head_kind("twin", two_classifiers=True, tensors=tensors)
def twin(dim: int, classes: int, rng: torch.Generator, **spec: Any) -> Any:
    """phi, received, beside phi_k, the client's own, by which it predicts."""
    from headway.models.heads import PairHead  # which needs torch

    return PairHead(dim, classes, rng, ("received", "own"), residual=False, **spec)


@dataclass(frozen=True)
class FedTC(Piece):
    """theta: extractor; phi_k: the client's own classifier, retained; phi: the received one, fixed during the round.

    Algorithm 1, line 13 overwrites phi_k; text, abstract and Figure 2 retain it, and so does this piece.
    """

    name, slot, paper = "fedtc", "share", "liu2023fedtc"
    head_lr: float = setting(0.01, "eta_c / eta_e", gt=0)
    overwrite: bool = setting(False, "the ablation: Algorithm 1, line 13 taken at its word, phi_k <- phi")

    def head(self) -> Note:
        return {"kind": "twin"}

    def share(self, name: str) -> bool:  # phi_k is never overwritten
        return self.overwrite or not own(name)

    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(epochs, trains=lambda name: not received(name))]

    def step(self, step: Step, name: str) -> Step:  # eta_c for phi_k, eta_e for theta
        return replace(step, rate=step.rate * self.head_lr) if in_head(name) else step

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        mine = F.cross_entropy(local.net.head.own(batch.h.detach()), batch.y)  # type: ignore[operator]  # Eq. (5): moves phi_k only
        return mine + F.cross_entropy(batch.z, batch.y)  # Eq. (6): moves theta only

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:  # phi_k goes up in phi's place
        phi = local.net.params().only(own).copy()
        return {"w": w | Tree({name.replace("head.own.", "head.received."): v for name, v in phi.items()})}, {}
