"""fluke: FedAvg of fluke.algorithms, with the clients of a round given and the test set evaluated by fluke's server."""

from __future__ import annotations

from typing import Any

import shared
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver
from torchmetrics import Accuracy

JOB = shared.job()
CLIENTS, PARTICIPANTS = JOB.lists()


class Given(Server):
    """Takes the clients that the job names, one list a round."""

    turn = 0

    def get_eligible_clients(self, eligible_perc: float) -> list[Any]:
        chosen = PARTICIPANTS[self.turn]
        self.turn += 1
        return [self.clients[k] for k in chosen]

    def aggregate(self, eligible: Any, client_models: Any) -> None:
        super().aggregate(eligible, client_models)
        CLOCK.round()


class FedAvg(FedAVG):
    def get_server_class(self) -> type[Server]:
        return Given


class Seen(FederationObserver):
    """The last accuracy of the global model."""

    accuracy = 0.0

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **_: Any) -> None:
        self.accuracy = evals["accuracy"]


def loader(x: torch.Tensor, y: torch.Tensor, batch: int, shuffle: bool) -> FastDataLoader:
    return FastDataLoader(
        x, y, num_labels=shared.CLASSES, batch_size=batch, shuffle=shuffle, skip_singleton=False
    )  # fmt: skip


def main() -> None:
    global CLOCK
    data = JOB.arrays()
    environment, seen = FlukeENV(), Seen()
    environment.set_seed(0)
    environment.set_evaluator(
        ClassificationEval(1, shared.CLASSES, accuracy=Accuracy(task="multiclass", num_classes=shared.CLASSES))
    )
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=JOB.evaluate)
    train = [loader(data["x"][mine], data["y"][mine], JOB.batch, True) for mine in CLIENTS]
    test = loader(data["x_test"], data["y_test"], shared.EVALUATE, False)
    splitter = DataSplitter(DummyDataContainer(train, [None] * len(train), test, shared.CLASSES))
    settings = DDict(
        model=shared.Counted(*shared.layers(JOB.model)),
        client=DDict(
            batch_size=JOB.batch, local_epochs=1, loss="CrossEntropyLoss", persistency=False,  # momentum starts at zero
            optimizer=DDict(name="SGD", lr=JOB.lr, **JOB.sgd()), scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )  # fmt: skip
    algorithm = FedAvg(len(CLIENTS), splitter, settings)
    algorithm.set_callbacks(seen)
    shared.count_steps()
    CLOCK = shared.Clock()
    algorithm.run(JOB.rounds, len(PARTICIPANTS[0]) / len(CLIENTS), finalize=False)
    whole = CLOCK.whole()
    reached = seen.accuracy if JOB.evaluate else shared.accuracy(algorithm.server.model, data)
    shared.finish(JOB, CLOCK, whole, reached)


if __name__ == "__main__":
    main()
