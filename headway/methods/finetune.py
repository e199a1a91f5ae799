"""Finetuning: each client trains the final global model on its own data, as FedBABU and FedFN report it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core import Phase, Piece, setting


def classifier(name: str) -> bool:
    return name in ("head.weight", "head.bias")


@dataclass(frozen=True)
class Finetune(Piece):
    """All parameters move, a frozen classifier included."""

    name, slot, paper = "finetune", "personal", "oh2022fedbabu"
    epochs: int = setting(5, "epochs on the client's own data", ge=1)
    lr: float | None = setting(None, "learning rate; `factor` times the task's first when not given", gt=0)
    factor: float = setting(0.1, "factor on the task's first learning rate", gt=0, also="lr_factor")
    loss: str = setting("criterion", "the recipe's own criterion, or plain ce", choices=("criterion", "ce"))

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        rate = self.factor * lr if self.lr is None else self.lr
        phase = Phase(self.epochs, step=lambda s, n: replace(s, rate=rate), loss=self.loss, stage="finetuned")
        return [replace(phase, thaws=classifier)]
