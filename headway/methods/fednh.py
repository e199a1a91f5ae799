"""FedNH: Tackling Data Heterogeneity in Federated Learning with Class Prototypes (Dai et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, F, Local, Net, Note, Piece, Tensor, Tree, setting, torch
from headway.models.head_kinds import class_vectors


@class_vectors("ema_proto", moving=True)
def spread_rows(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """Unit rows as far apart as they come, [C, d]: orthonormal for C <= d, else rows of orthonormal columns."""
    long, short = max(dim, classes), min(dim, classes)
    q, r = torch.linalg.qr(torch.randn(long, short, generator=rng, dtype=torch.float64))  # [long, short]
    q = q * r.diagonal().sign()
    return F.normalize(q, dim=1).float() if classes > dim else q.T.float().contiguous()


@dataclass(frozen=True)
class Proto(Piece):
    """z = s W h/||h||: W starts orthogonal, SGD never touches it, the server moves it slowly towards class means."""

    name, slot, paper = "proto", "head", "dai2023fednh"
    rho: float = setting(0.9, "rho, share of the old prototype that is kept", ge=0, le=1)

    def requires(self) -> set[str]:
        return {"server"}

    def head(self) -> Note:
        return {"feat": "l2", "weights": "ema_proto", "wnorm": "unit", "scale": "learnable", "bias": False}

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"W": net.frozen()["head.weight"]}  # [C, d]

    def broadcast(self, kept: Note) -> Note:
        return kept  # W, [C, d]

    def equip(self, sent: Note, counts: Tensor | None) -> Tree:
        return Tree({"head.weight": sent["W"]})

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        e = F.normalize(local.net.features_of(local.x), dim=1)  # [n_k, d]
        sums = e.new_zeros(local.net.classes, e.shape[1]).index_add_(0, local.y, e)
        mu = F.normalize(sums / local.counts.clamp(min=1)[:, None], dim=1)  # mu_{k,c}, [C, d]
        return {"mu": mu, "n": local.counts}, {}

    def absorb(self, arrived: Arrived) -> Note:
        n = torch.stack([r.sent["n"] for r in arrived.reports]).float()  # [m, C]
        sums = (n[:, :, None] * torch.stack([r.sent["mu"] for r in arrived.reports])).sum(0)  # [C, d]
        fresh = F.normalize(sums / n.sum(0).clamp(min=1)[:, None], dim=1)  # W_c'
        W = arrived.kept["W"]
        moved = F.normalize(self.rho * W + (1 - self.rho) * fresh, dim=1)  # W_c <- rho W_c + (1-rho) W_c'
        return {"W": torch.where(n.sum(0)[:, None] > 0, moved, W)}  # absent classes keep theirs
