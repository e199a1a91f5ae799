"""FedProto: Federated Prototype Learning across Heterogeneous Clients (Tan et al., 2022)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.local import Batch, Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree


@dataclass(frozen=True)
class ProtoAlign(Piece):
    """Pulls features to the global prototype of their class. `fedproto` is this without any model averaging."""

    name, slot, paper = "protoalign", "reg", "tan2022fedproto"
    also = {"lambda": "weight"}  # noqa: RUF012
    needs_server, neutral = True, {"weight": 0.0}
    weight: float = setting(0.1, "lambda", ge=0)
    average: str = setting("uniform", "prototypes over clients", choices=("uniform", "weighted"))

    predict: str = setting("head", "a client's own prediction", choices=("head", "nearest"))

    def head(self) -> dict[str, Any]:
        return {"kind": "nearest"} if self.predict == "nearest" else {}

    def equip(self, sent: dict[str, Any], counts: Tensor | None) -> Tree:
        if self.predict == "head" or "proto" not in sent:
            return Tree()
        return Tree({"head.proto": sent["proto"], "head.known": sent["known"].float()})

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"proto": torch.zeros(classes, dim), "known": torch.zeros(classes, dtype=torch.bool)}  # [C, d], [C]

    def broadcast(self, kept: dict[str, Any]) -> dict[str, Any]:
        return kept

    def penalty(self, batch: Batch, local: Local) -> Tensor:  # lambda 1/(B d) sum_i ||h_i - P_{y_i}||^2
        target, known = local.sent["proto"].to(batch.h.device), local.sent["known"].to(batch.h.device)
        gap = (batch.h - target[batch.y]) * known[batch.y, None]  # [B, d]; no pull where no prototype exists yet
        return self.weight * gap.square().mean()

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"mean": local.class_means(), "n": local.counts}, {}  # [C, d], [C]

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        n = torch.stack([r.sent["n"] for r in reports]).float()  # [m, C]
        share = n if self.average == "weighted" else (n > 0).float()
        sums = (share[:, :, None] * torch.stack([r.sent["mean"] for r in reports])).sum(0)  # [C, d]
        owned = share.sum(0) > 0
        before, known = kept["proto"].to(sums.device), kept["known"].to(sums.device)
        proto = torch.where(owned[:, None], sums / share.sum(0).clamp(min=1)[:, None], before)
        return {"proto": proto, "known": known | owned}  # a class nobody has keeps its old prototype
