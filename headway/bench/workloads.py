"""The workloads: three federations, and one with a growing number of clients, as settings and tasks of normal runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headway.base.errors import DataError
from headway.base.tree import stream
from headway.data import Dataset, load
from headway.data.augment import Augment
from headway.data.partitions.partition import Lists, Partition, draw, lists_of
from headway.models import body
from headway.models.mlp import mlp
from headway.training.settings import Settings
from headway.training.task import ClientData, Task, build

Ints = npt.NDArray[np.int64]
PARTICIPANTS = 10  # per round, in the federation that grows
SAMPLES_EACH = 50
COMMON = {"data": "cifar10", "local_test": "none", "epochs": 1, "lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4}


@dataclass(frozen=True)
class Workload:
    """A task to time: its settings, the largest number of samples per client, and the number of rounds per turn."""

    name: str
    about: str
    settings: Settings
    most: int | None = None
    rounds: int = 1  # so many that a turn takes at least a second, to make the scheduler's noise small


def workload(name: str, about: str, most: int | None, rounds: int, **own: Any) -> Workload:
    return Workload(name, about, Settings(**(COMMON | own)), most, rounds)


WORKLOADS = {
    w.name: w
    for w in (
        workload("w1", "FedAvg CNN, 20 clients of at most 256, batch 64", 256, 2, model="mcmahan_cnn", batch_size=64),
        workload("w2", "ResNet20, 20 clients of at most 128, batch 64", 128, 1, model="resnet20", batch_size=64),
        workload(
            "w3", "MLP 3072-200-10, 100 of 1000 clients of 50, batch 10", None, 5,
            model="headway.bench.workloads:one_hidden_layer", partition="iid", clients=1000, sampling=0.1,
            batch_size=10,
        ),
        workload("whole", "ResNet20, CIFAR-10 over 20 clients, batch 64", None, 1, model="resnet20", batch_size=64),
    )
}  # fmt: skip


def one_hidden_layer(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The MLP of W3; the built-in ones have other widths."""
    first = mlp(shape, "none", widths=(200,))
    return nn.Sequential(*first.children(), nn.Linear(first.dim, classes))


def plain_model(w: Workload, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The workload's network as a plain module that takes normalised floats."""
    name = w.settings.model
    if name.endswith("one_hidden_layer"):
        return one_hidden_layer(classes, shape)
    first = body(name, shape, bn=w.settings.bn_of(name), seed_stream=stream(w.settings.seed, "init"))
    return nn.Sequential(first, nn.Linear(int(first.dim), classes))  # type: ignore[arg-type]


def images(name: str) -> Dataset:
    """CIFAR-10; if it cannot be loaded, noise of the same shape, which takes the same time to compute."""
    if name == "cifar10":
        try:
            return load(name)
        except DataError:
            pass
    return noise()


def noise(train: int = 50_000, test: int = 10_000) -> Dataset:
    rng = np.random.default_rng(0)
    x, x_test = (torch.from_numpy(rng.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)) for n in (train, test))
    y, y_test = (torch.arange(n) % 10 for n in (train, test))
    names = tuple(str(c) for c in range(10))
    return Dataset("random", x, y, x_test, y_test, 10, names, mean=(0.5,) * 3, std=(0.29,) * 3)


def task_of(w: Workload, data: Dataset) -> Task:
    """The workload as a task, with the number of samples per client limited."""
    s = w.settings
    whole = draw(s.partition, data.y.numpy(), s.clients, s.seed, classes=data.classes)
    return build(s, dataset=data, partition=capped(whole, w.most, s.batch_size))


def capped(p: Partition, most: int | None, batch: int) -> Partition:
    """Limit the samples per client to a random subset; avoid a last batch of one, which BatchNorm would skip."""
    if most is None:
        return p
    kept = []
    for k, mine in enumerate(p):
        n = min(most, len(mine))
        n -= n > 1 and n % batch == 1
        kept.append(mine[torch.randperm(len(mine), generator=stream("bench", "cap", k)).numpy()[:n]])
    owner = np.repeat(np.arange(len(p)), [len(mine) for mine in kept])
    lists = lists_of(np.concatenate(kept), owner, len(p))
    return replace(p, spec=f"{p.spec} capped at {most}", index=lists.index, offsets=lists.offsets)


class SharedSamples(Lists):
    """Client k has `each` samples from k * each on, modulo the data set: the lists are computed and not stored."""

    def __init__(self, clients: int, each: int, samples: int):
        super().__init__(np.empty(0, dtype=np.int64), np.arange(clients + 1, dtype=np.int64) * each)
        object.__setattr__(self, "samples", samples)

    def __getitem__(self, k: int) -> Ints:
        return np.arange(self.offsets[k], self.offsets[k + 1]) % self.samples  # type: ignore[attr-defined]


def growing_task(clients: int, data: Dataset) -> Task:
    """A task with ten participants per round, for any number of clients."""
    s = Settings(
        **COMMON, model="mcmahan_cnn", batch_size=10, clients=clients, sampling=PARTICIPANTS / clients,
        partition="iid",
    )  # fmt: skip
    empty = Partition("shared", 0, np.empty(0, dtype=np.int64), np.zeros(clients + 1, dtype=np.int64), 10, "", {})
    task = build(s, dataset=data, partition=empty)
    parts = SharedSamples(clients, SAMPLES_EACH, len(data.y))
    return replace(task, data=ClientData(task.data.x, task.data.y, parts))


class Unchanged(Augment):
    """An augmentation without effect; with it, a phase may not compute its features once and reuse them."""

    def __bool__(self) -> bool:
        return True

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return x


def uncached(task: Task) -> Task:
    return replace(task, augment=Unchanged())
