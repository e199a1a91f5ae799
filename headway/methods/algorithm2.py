"""FedETF's personalised finetuning in stages: No Fear of Classifier Biases (Li et al., 2023), Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

from headway.base.errors import RecipeError
from headway.core import Phase, Piece, Setup, Step, in_body, setting

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
    turns: int = setting(20, "T_p, turns of stages A and B", ge=0, also="t_p")
    epochs: int = setting(3, "E of every stage", ge=1, also="e")
    lr_v: float = setting(0.1, "learning rate of stage A", gt=0)
    lr_p: float = setting(0.05, "learning rate of stage B", gt=0)
    compat: bool = setting(False, "follow the official code instead of the paper")

    def check(self, setup: Setup) -> list[str]:
        head = setup.recipe.head()
        if head.get("weights") != "frozen_etf" or head.get("feat") != "proj+l2":
            raise RecipeError(
                f"{setup.recipe.names}: algorithm2 finetunes the projection and classifier of FedETF in turn and this "
                f"recipe has neither; use it with fedetf, or use ft"
            )
        return []

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        E = self.epochs
        beta = "" if self.compat else BETA
        if self.compat:
            stages = [Phase(E, trains=lambda n: n != V, stage="0")]
        else:
            stages = [Phase(E, trains=lambda n: in_body(n) or n == BETA, loss="ce", stage="0")]
        for turn in range(1, self.turns + 1):
            stages += [
                Phase(E, trains=lambda n: n in (V, beta), step=lambda s, n: Step(self.lr_v, momentum=0.0, decay=0.0),
                      thaws=lambda n: n == V, loss="ce", train_mode=self.compat, stage=f"A{turn}"),
                Phase(E, trains=lambda n: projection(n) or n == beta, loss="ce", train_mode=self.compat,
                      step=lambda s, n: Step(self.lr_p, momentum=0.9, decay=5e-4), stage=f"B{turn}"),
            ]  # fmt: skip
        return stages
