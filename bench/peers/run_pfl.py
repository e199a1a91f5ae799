"""pfl-research: FederatedAveraging on a SimulatedBackend in one process, the test set through its central callback."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import shared
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F


class Net(shared.Counted):
    """With the two methods that pfl asks of a network."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.eval()
        return {"accuracy": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


class FedAvg(FederatedAveraging):  # type: ignore[misc]
    """Without evaluating the training clients, which pfl otherwise does in the first round."""

    def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        told = contexts and tuple(dataclasses.replace(c, do_evaluation=False) for c in contexts)
        return told, model, metrics


class Rounds(TrainingProcessCallback):  # type: ignore[misc]
    def __init__(self, clock: shared.Clock):
        self.clock = clock

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.clock.round()
        return False, Metrics()


class TestSet(CentralEvaluationCallback):  # type: ignore[misc]
    """After every round as in the others; pfl's own evaluates before the first round instead of after it."""

    accuracy = 0.0

    def on_train_begin(self, **_: Any) -> Metrics:
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        stop, metrics = self._eval(model)
        values = metrics.to_simple_dict(to_lowercase=True)
        self.accuracy = next(value for name, value in values.items() if "accuracy" in name)
        return stop, metrics


def main() -> None:
    job = shared.job()
    data, (clients, participants) = job.arrays(), job.lists()
    shards = [
        PyTorchTensorDataset((data["x"][mine], data["y"][mine]), user_id=str(k)) for k, mine in enumerate(clients)
    ]
    chosen: Iterator[int] = (k for ks in participants for k in ks)
    train = FederatedDataset(shards.__getitem__, functools.partial(next, chosen))
    net = Net(*shared.layers(job.model))
    central = torch.optim.SGD(net.parameters(), lr=1.0)
    model = PyTorchModel(net, functools.partial(torch.optim.SGD, **job.sgd()), central)
    evaluation = NNEvalHyperParams(local_batch_size=shared.EVALUATE)
    test = TestSet(PyTorchTensorDataset((data["x_test"], data["y_test"])), evaluation)
    shared.count_steps(leave_out=central)
    clock = shared.Clock()
    FedAvg().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds, evaluation_frequency=job.rounds,
            train_cohort_size=len(participants[0]), val_cohort_size=0,
        ),
        backend=SimulatedBackend(train, train, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        model_eval_params=evaluation,
        callbacks=[Rounds(clock), *([test] if job.evaluate else [])],
    )  # fmt: skip
    whole = clock.whole()
    shared.finish(job, clock, whole, test.accuracy if job.evaluate else shared.accuracy(net, data))


if __name__ == "__main__":
    main()
