"""Oracle calibration: the classifier retrained on real features (No Fear of Heterogeneity, Luo et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.calibration import open_head, retrain, which_head
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.models.net import Net


@dataclass(frozen=True)
class Oracle(Piece):
    """CCVR's bound: the same retraining on real features. It pools them raw: for simulation, it keeps no secret."""

    name, slot, paper, needs_server = "oracle", "calib", "luo2021ccvr", True
    also = {"n": "per_class"}  # noqa: RUF012
    per_class: int | None = setting(None, "real features a class; all of them when not given", ge=1)
    lr: float = setting(0.01, "learning rate of the retraining", gt=0)
    epochs: int = setting(100, "epochs of the retraining", ge=1)
    replace_head: bool = setting(False, "replace a frozen classifier by a trained linear one")
    global_head: str = which_head()

    def survey(self, net: Net, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"e": net.embedding_of(x), "y": y}  # [n_k, d], [n_k]

    def calibrate(self, net: Net, surveys: Iterable[dict[str, Any]], rng: torch.Generator) -> Net:
        held = list(surveys)
        e, y = (torch.cat([s[key] for s in held]) for key in ("e", "y"))  # [n, d], [n]
        if self.per_class is not None:
            order = torch.randperm(len(y), generator=rng).to(y.device)
            chosen = torch.cat([order[y[order] == c][: self.per_class] for c in y.unique()])
            e, y = e[chosen], y[chosen]
        return retrain(open_head(net, self.replace_head), e, y, rng, lr=self.lr, epochs=self.epochs)
