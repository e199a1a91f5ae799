"""Global memory vectors: Neural Collapse Inspired Federated Learning with Non-iid Data (Huang et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Local, Note, Piece, Setup, Tensor, Tree, setting, torch
from headway.core.compatibility import refuse


@dataclass(frozen=True)
class GMV(Piece):
    """Training adds the global mean of its class to each feature, so that clients optimise a shared point."""

    name, slot, paper = "gmv", "reg", "huang2023etf"
    alpha: float = setting(0.5, "alpha, weight of the memory", ge=0, neutral=0.0)
    warmup: int = setting(500, "R_warm, the first round that uses the memory", ge=1, also="r_warm")
    space: str = setting(
        "plain", "raw: accept heads that normalise features or keep them personal", choices=("plain", "raw")
    )
    collect: str = setting(
        "final", "features of the trained model, or as seen in the last epoch", choices=("final", "last_epoch")
    )

    def requires(self) -> set[str]:
        collected = {"features of the last epoch"} if self.collect == "last_epoch" else set()
        return {"server", "plain gradient"} | collected

    def check(self, setup: Setup) -> list[str]:
        """A memory in raw feature space, added before features are normalised, is a choice to be made openly."""
        recipe = setup.recipe
        unit = recipe.head().get("feat", "id") != "id"
        if unit and self.space == "plain":
            owner = recipe.owner("feat")
            refuse(
                recipe, "gmv", owner, f"gmv adds to raw features and {owner} normalises them", "write gmv(space=raw)"
            )
        for p in recipe.pieces if self.space == "plain" else ():
            if p.slot == "share" and "default" not in p.provides():
                why = f"gmv needs one feature space and under {p.name} parts are personal"
                refuse(recipe, "gmv", p.name, why, "write gmv(space=raw)")
        if setup.rounds is not None and self.warmup >= setup.rounds:
            return [f"gmv(warmup={self.warmup}) never acts in {setup.rounds} rounds; give a smaller warmup"]
        apart = not (recipe.share("head.weight") and recipe.share("body.weight"))
        return (["gmv(space=raw) adds to features that the head then normalises"] if unit else []) + (
            ["gmv(space=raw) averages features of bodies or heads that are personal"] if apart else []
        )

    def broadcast(self, kept: Note) -> Note:
        return kept  # mu, [C, d], once it exists

    def lift(self, h: Tensor, y: Tensor, local: Local) -> Tensor:  # h' = h + alpha mu_y; training only
        if local.round < self.warmup or self.alpha == 0 or "mu" not in local.sent:
            return h
        return h + self.alpha * local.sent["mu"][y]  # [B, d]

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        if local.round < self.warmup - 1:
            return {}, {}
        mean = local.last_epoch_means() if self.collect == "last_epoch" else local.class_means()  # [C, d]
        return {"owns": local.counts > 0, "mean": mean}, {}  # h, not h': mu must not feed on itself

    def absorb(self, arrived: Arrived) -> Note:
        reports, kept = arrived.reports, arrived.kept
        if not reports[0].sent:
            return kept
        owners = torch.stack([r.sent["owns"].float() for r in reports]).sum(0)[:, None]  # [C, 1]
        mu = torch.stack([r.sent["mean"] for r in reports]).sum(0) / owners.clamp(min=1)  # mean over owners, [C, d]
        return {"mu": torch.where(owners > 0, mu, kept.get("mu", mu.new_zeros(())))}  # never owned: no shift
