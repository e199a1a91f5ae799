"""CCVR: No Fear of Heterogeneity: Classifier Calibration for Federated Learning (Luo et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.calibration import retrain
from headway.errors import RecipeError
from headway.moments import Moments
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.models.net import Net
    from headway.recipes import Recipe


@dataclass(frozen=True)
class CCVR(Piece):
    """After training: pool class Gaussians of the clients' features, draw virtual features, retrain the classifier."""

    name, slot, paper = "ccvr", "calib", "luo2021ccvr"
    per_class: int = setting(100, "M_c, virtual features a class", ge=1)
    lr: float = setting(0.01, "learning rate of the retraining", gt=0)
    epochs: int = setting(100, "epochs of the retraining", ge=1)

    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        if recipe.head().get("weights", "trainable") != "trainable":
            raise RecipeError(f"{recipe}: ccvr retrains the classifier and this head is frozen; drop one of the two")
        if recipe.head().get("kind", "single") != "single" or not recipe.share("head.weight"):
            raise RecipeError(
                f"{recipe}: ccvr calibrates the global classifier and here clients have their own; drop one of the two"
            )

    def survey(self, net: Net, x: Tensor, y: Tensor) -> dict[str, Any]:  # Eq. (2), on e = what the classifier sees
        e = net.head.embed(net.features_of(x))  # type: ignore[operator]  # [n_k, d]
        return {str(c): Moments.of(e[y == c]) for c in y.unique().tolist()}

    def calibrate(self, net: Net, surveys: Sequence[dict[str, Any]], rng: torch.Generator) -> Net:
        classes = sorted(set().union(*surveys), key=int)
        pooled = [Moments.pool([s[c] for s in surveys if c in s]) for c in classes]  # Eqs. (3), (4)
        covs = [m.cov for m in pooled if m.n > 1]
        if covs:  # a class with a single feature borrows the mean covariance of the others
            pooled = [m if m.n > 1 else m.with_cov(torch.stack(covs).mean(0)) for m in pooled]
        e = torch.cat([m.sample(self.per_class, rng) for m in pooled])  # [C M, d]
        y = torch.tensor([int(c) for c in classes], device=e.device).repeat_interleave(self.per_class)  # [C M]
        return retrain(net, e, y, rng, lr=self.lr, epochs=self.epochs)
