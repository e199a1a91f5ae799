"""FedETF's personalised finetuning in stages: No Fear of Classifier Biases (Li et al., 2023), Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.errors import RecipeError
from headway.local import Phase, everything, in_body
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.recipes import Recipe

BETA, V = "head.scale", "head.weight"


def projection(name: str) -> bool:
    return name.startswith("head.proj.")


@dataclass(frozen=True)
class Algorithm2(Piece):
    """First {u, beta}; then T_p times {V, beta} and {p, beta}, V thawed and not normalised again; plain CE throughout.

    T_p, E and the rates are the official code's, the paper gives none. `compat` follows that code where it differs from
    the paper: stage 0 trains {u, p, beta} under the balanced loss; afterwards beta rests and BatchNorm does not.
    """

    name, slot, paper = "algorithm2", "personal", "li2023fedetf"
    also = {"t_p": "turns", "e": "epochs"}  # noqa: RUF012
    turns: int = setting(20, "T_p, turns of stages A and B", ge=0)
    epochs: int = setting(3, "E of every stage", ge=1)
    lr_v: float = setting(0.1, "learning rate of stage A", gt=0)
    lr_p: float = setting(0.05, "learning rate of stage B", gt=0)
    compat: bool = setting(False, "follow the official code instead of the paper")

    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        if recipe.head().get("weights") != "frozen_etf" or recipe.head().get("feat") != "proj+l2":
            raise RecipeError(
                f"{recipe.names}: algorithm2 finetunes FedETF's projection and classifier in turn and this recipe has "
                f"neither; use it with fedetf, or use ft"
            )

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        E = self.epochs
        beta = "" if self.compat else BETA
        if self.compat:
            stages = [Phase(E, trains=lambda n: n != V, stage="0")]
        else:
            stages = [Phase(E, trains=lambda n: in_body(n) or n == BETA, loss="ce", stage="0")]
        for turn in range(1, self.turns + 1):
            stages += [
                Phase(E, trains=lambda n: n in (V, beta), rate=self.lr_v, plain=everything, thaws=lambda n: n == V,
                      loss="ce", awake=self.compat, stage=f"A{turn}"),
                Phase(E, trains=lambda n: projection(n) or n == beta, rate=self.lr_p, momentum=0.9, weight_decay=5e-4,
                      loss="ce", awake=self.compat, stage=f"B{turn}"),
            ]  # fmt: skip
        return stages
