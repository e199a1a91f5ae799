"""Finetuning: each client trains the final global model on its own data, as FedBABU and FedFN report it."""

from dataclasses import dataclass

from headway.local import Phase
from headway.piece import Piece, setting


def classifier(name: str) -> bool:
    return name in ("head.weight", "head.bias")


@dataclass(frozen=True)
class Finetune(Piece):
    """All parameters move, a frozen classifier included."""

    name, slot, paper = "finetune", "personal", "oh2022fedbabu"
    also = {"lr_factor": "factor"}  # noqa: RUF012
    epochs: int = setting(5, "epochs on the client's own data", ge=1)
    lr: float | None = setting(None, "learning rate; `factor` times the task's first when not given", gt=0)
    factor: float = setting(0.1, "factor on the task's first learning rate", gt=0)
    loss: str = setting("criterion", "the recipe's own criterion, or plain ce", choices=("criterion", "ce"))

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        rate = self.factor * lr if self.lr is None else self.lr
        return [Phase(self.epochs, rate=rate, thaws=classifier, loss=self.loss, stage="finetuned")]
