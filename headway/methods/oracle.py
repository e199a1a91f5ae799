"""Oracle calibration: the classifier retrained on real features (No Fear of Heterogeneity, Luo et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.core import Net, Note, Piece, Recipe, Setup, Tensor, setting, torch
from headway.core.compatibility import is_frozen
from headway.methods.parts.calibration import check_calibration, needs, open_head, retrain, which_head


@dataclass(frozen=True)
class Oracle(Piece):
    """CCVR's bound: the same retraining on real features. It pools them raw: for simulation, it keeps no secret."""

    name, slot, paper = "oracle", "calib", "luo2021ccvr"
    per_class: int | None = setting(None, "real features a class; all of them when not given", ge=1, also="n")
    lr: float = setting(0.01, "learning rate of the retraining", gt=0)
    epochs: int = setting(100, "epochs of the retraining", ge=1)
    replace_head: bool = setting(False, "replace a frozen classifier by a trained linear one")
    global_head: str = which_head()

    def requires(self) -> set[str]:
        return needs(self.global_head)

    def provides(self) -> set[str]:
        return {"same classifier"}

    def check(self, setup: Setup) -> list[str]:
        return check_calibration(self, setup.recipe, self.global_head, self.replace_head)

    @classmethod
    def bound_of(cls, recipe: Recipe) -> Oracle:
        """The bound of a recipe's calibration: it starts from the same classifier."""
        start = getattr(recipe.decider("calibrate"), "global_head", "server")
        return cls(replace_head=is_frozen(recipe), global_head=start)

    def survey(self, net: Net, x: Tensor, y: Tensor) -> Note:
        return {"e": net.embedding_of(x), "y": y}  # [n_k, d], [n_k]

    def calibrate(self, net: Net, surveys: Iterable[Note], rng: torch.Generator) -> Net:
        held = list(surveys)
        e, y = (torch.cat([s[key] for s in held]) for key in ("e", "y"))  # [n, d], [n]
        if self.per_class is not None:
            order = torch.randperm(len(y), generator=rng).to(y.device)
            chosen = torch.cat([order[y[order] == c][: self.per_class] for c in y.unique()])
            e, y = e[chosen], y[chosen]
        return retrain(open_head(net, self.replace_head), e, y, rng, lr=self.lr, epochs=self.epochs)
