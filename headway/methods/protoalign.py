"""FedProto: Federated Prototype Learning across Heterogeneous Clients (Tan et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core import Arrived, Batch, Local, Net, Note, Piece, Tensor, Tree, setting, torch
from headway.models.head_kinds import Tensors, head_kind, linear_tensors


def tensors(**spec: Any) -> Tensors:
    return linear_tensors(**spec) | {"proto": False, "known": False}


@head_kind("nearest", tensors=tensors)
def nearest(dim: int, classes: int, rng: torch.Generator, **spec: Any) -> Any:
    """A linear classifier to train by, and global prototypes to predict by."""
    from headway.methods.parts.nearest_head import NearestHead  # which needs torch

    return NearestHead(dim, classes, rng, **spec)


@dataclass(frozen=True)
class ProtoAlign(Piece):
    """Pulls features to the global prototype of their class. `fedproto` is this without any model averaging."""

    name, slot, paper = "protoalign", "reg", "tan2022fedproto"
    weight: float = setting(0.1, "lambda", ge=0, also="lambda", neutral=0.0)
    average: str = setting("uniform", "prototypes over clients", choices=("uniform", "weighted"))
    predict: str = setting("head", "a client's own prediction", choices=("head", "nearest"))

    def requires(self) -> set[str]:
        return {"server"}

    def head(self) -> Note:
        return {"kind": "nearest"} if self.predict == "nearest" else {}

    def equip(self, sent: Note, counts: Tensor | None) -> Tree:
        if self.predict == "head" or "proto" not in sent:
            return Tree()
        return Tree({"head.proto": sent["proto"], "head.known": sent["known"].float()})

    def init_server(self, w: Tree, net: Net) -> Note:
        C, d = net.classes, net.dim
        return {"proto": torch.zeros(C, d), "known": torch.zeros(C, dtype=torch.bool)}

    def broadcast(self, kept: Note) -> Note:
        return kept

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # lambda 1/(B d) sum_i ||h_i - P_{y_i}||^2
        target, known = local.sent["proto"].to(batch.h.device), local.sent["known"].to(batch.h.device)
        gap = (batch.h - target[batch.y]) * known[batch.y, None]  # [B, d]; no pull where no prototype exists yet
        return self.weight * gap.square().mean()

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        return {"mean": local.class_means(), "n": local.counts}, {}  # [C, d], [C]

    def absorb(self, arrived: Arrived) -> Note:
        reports, kept = arrived.reports, arrived.kept
        n = torch.stack([r.sent["n"] for r in reports]).float()  # [m, C]
        share = n if self.average == "weighted" else (n > 0).float()
        sums = (share[:, :, None] * torch.stack([r.sent["mean"] for r in reports])).sum(0)  # [C, d]
        owned = share.sum(0) > 0
        before, known = kept["proto"].to(sums.device), kept["known"].to(sums.device)
        proto = torch.where(owned[:, None], sums / share.sum(0).clamp(min=1)[:, None], before)
        return {"proto": proto, "known": known | owned}  # a class that no client has keeps its old prototype
