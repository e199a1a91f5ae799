"""Global memory vectors: Neural Collapse Inspired Federated Learning with Non-iid Data (Huang et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.local import Local
from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree

if TYPE_CHECKING:
    from headway.recipes import Recipe


@dataclass(frozen=True)
class GMV(Piece):
    """Training adds the global mean of its class to each feature, so that clients optimise a shared point."""

    name, slot, paper, neutral = "gmv", "reg", "huang2023etf", {"alpha": 0.0}
    also = {"r_warm": "warmup"}  # noqa: RUF012
    needs_server = True
    alpha: float = setting(0.5, "alpha, weight of the memory", ge=0)
    warmup: int = setting(500, "R_warm, the first round that uses the memory", ge=1)
    space: str = setting(
        "plain", "raw: accept heads that normalise features or keep them personal", choices=("plain", "raw")
    )
    collect: str = setting(
        "final", "features of the trained model, or as seen in the last epoch", choices=("final", "last_epoch")
    )

    def wants_seen(self) -> bool:
        return self.collect == "last_epoch"

    def advise(self, recipe: Recipe, rounds: int, lr: float) -> list[str]:
        if self.warmup >= rounds:
            return [f"gmv(warmup={self.warmup}) never acts in {rounds} rounds; give a smaller warmup"]
        unit = recipe.head().get("feat", "id") != "id"
        apart = not (recipe.share("head.weight") and recipe.share("body.weight"))
        return (["gmv(space=raw) adds to features that the head then normalises"] if unit else []) + (
            ["gmv(space=raw) averages features of bodies or heads that are personal"] if apart else []
        )

    def broadcast(self, kept: dict[str, Any]) -> dict[str, Any]:
        return kept  # mu, [C, d], once it exists

    def lift(self, h: Tensor, y: Tensor, local: Local) -> Tensor:  # h' = h + alpha mu_y; training only
        if local.round < self.warmup or self.alpha == 0 or "mu" not in local.sent:
            return h
        return h + self.alpha * local.sent["mu"][y]  # [B, d]

    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        if local.round < self.warmup - 1:
            return {}, {}
        return {
            "owns": local.counts > 0,
            "mean": local.seen_means() if self.wants_seen() else local.class_means(),
        }, {}  # h, not h': mu must not feed on itself

    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        if not reports[0].sent:
            return kept
        owners = torch.stack([r.sent["owns"].float() for r in reports]).sum(0)[:, None]  # [C, 1]
        mu = torch.stack([r.sent["mean"] for r in reports]).sum(0) / owners.clamp(min=1)  # mean over owners, [C, d]
        return {"mu": torch.where(owners > 0, mu, kept.get("mu", mu.new_zeros(())))}  # never owned: no shift
