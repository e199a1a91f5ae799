"""FedNH: Tackling Data Heterogeneity in Federated Learning with Class Prototypes (Dai et al., 2023)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from headway.local import Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree


@dataclass(frozen=True)
class Proto(Piece):
    """z = s W h/||h||: W starts orthogonal, SGD never touches it, the server moves it slowly towards class means."""

    name, slot, paper, needs_server = "proto", "head", "dai2023fednh", True
    holds = {"W": "head.weight"}  # noqa: RUF012
    rho: float = setting(0.9, "rho, inertia of the prototypes", ge=0, le=1)

    def head(self) -> dict[str, Any]:
        return {"feat": "l2", "weights": "ema_proto", "wnorm": "unit", "scale": "learnable", "bias": False}

    def broadcast(self, kept: dict[str, Any]) -> dict[str, Any]:
        return kept  # W, [C, d]

    def equip(self, sent: dict[str, Any], counts: Tensor | None) -> Tree:
        return Tree({"head.weight": sent["W"]})

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        e = normalize(local.net.features_of(local.x), dim=1)  # [n_k, d]
        sums = e.new_zeros(local.net.classes, e.shape[1]).index_add_(0, local.y, e)
        mu = normalize(sums / local.counts.clamp(min=1)[:, None], dim=1)  # mu_{k,c}, [C, d]
        return {"mu": mu, "n": local.counts}, {}

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        n = torch.stack([r.sent["n"] for r in reports]).float()  # [m, C]
        sums = (n[:, :, None] * torch.stack([r.sent["mu"] for r in reports])).sum(0)  # [C, d]
        fresh = normalize(sums / n.sum(0).clamp(min=1)[:, None], dim=1)  # W_c'
        W = kept["W"]
        moved = normalize(self.rho * W + (1 - self.rho) * fresh, dim=1)  # W_c <- rho W_c + (1-rho) W_c'
        return {"W": torch.where(n.sum(0)[:, None] > 0, moved, W)}  # absent classes keep theirs
