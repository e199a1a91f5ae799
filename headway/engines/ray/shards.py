"""Clients' samples on a cluster: they are sent to a node when it first trains the client, and cached there.

Only the run holds the data set. It puts a client's samples into the object store of its own node when they are first
needed. Another node fetches them once, and its workers read them there. So no other node needs the data set, and each
holds only the samples of clients that it has trained.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.base import machine
from headway.data import Dataset
from headway.data.partitions.partition import Lists, Partition
from headway.data.partitions.splits import Split
from headway.engines.transport import from_array, to_array
from headway.models.net import chunks
from headway.training.devices import resolve_device
from headway.training.parts import augment_for, body_maker
from headway.training.settings import Settings
from headway.training.task import ClientData, Task, padded

if TYPE_CHECKING:
    from headway.engines.ray.worker import Packed


class Shards:
    """The run's side: references to clients' samples in the object store.

    Samples are put there when first needed, up to `budget` bytes; beyond it, the least recently used are dropped.
    """

    def __init__(self, put: Callable[[NDArray[np.uint8]], Any], task: Task, budget: int | None = None) -> None:
        self._put, self._task = put, task
        self._budget = machine.memory() // 4 if budget is None else budget
        self._stored: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()  # key -> reference, bytes
        self._bytes = 0

    def train(self, k: int) -> Any:
        """Client k's training samples."""
        return self._reference("train", k, lambda: self._task.data[k])

    def labels(self, k: int) -> Any:
        """Client k's training labels alone, for evaluation without training."""
        return self._reference("labels", k, lambda: self._without_inputs(k))

    def test(self, k: int) -> Any:
        """Client k's own test samples."""
        return self._reference("test", k, lambda: self._task.test(k))

    def part(self, i: int) -> Any:
        """Part i of the global test set."""
        return self._reference("part", i, lambda: (chunks(self._task.dataset.x_test)[i], torch.empty(0)))

    def held_out(self, positions: Tensor) -> Any:
        """The clients' own test samples at these positions, which are the same in every round."""
        number = int.from_bytes(hashlib.sha256(positions.numpy().tobytes()).digest()[:8], "big")
        x = self._task.tests.x
        return self._reference("held out", number, lambda: (x[positions.to(x.device)], torch.empty(0)))

    def _reference(self, what: str, number: int, samples: Callable[[], tuple[Tensor, Tensor]]) -> Any:
        key = what, number
        if key not in self._stored:
            x, y = samples()
            packed = to_array({"x": x, "y": y})
            self._stored[key] = self._put(packed), packed.nbytes
            self._bytes += packed.nbytes
        self._stored.move_to_end(key)
        while self._bytes > self._budget and len(self._stored) > 1:
            _, (_, size) = self._stored.popitem(last=False)  # calls that are running keep references of their own
            self._bytes -= size
        return self._stored[key][0]

    def _without_inputs(self, k: int) -> tuple[Tensor, Tensor]:
        data = self._task.data
        i = torch.from_numpy(np.ascontiguousarray(data.parts[k])).to(data.y.device)
        return data.x[:0], data.y.index_select(0, i)


class Shard(ClientData):
    """A worker's side: the samples of the clients it trains."""

    def __init__(self, packed: Mapping[int, Packed], device: torch.device) -> None:
        self._packed, self._device = packed, device

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        """The samples as copies, like in the run: other workers read the memory of the object store too."""
        value = from_array(self._packed[k], self._device)
        return value["x"], value["y"]

    def size(self, k: int) -> int:
        return len(self[k][1])

    def together(self, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, list[int]]:
        each = [self[k] for k in ids]
        ends = np.cumsum([len(y) for _, y in each])
        rows = [np.arange(end - len(y), end) for end, (_, y) in zip(ends, each, strict=True)]
        return torch.cat([x for x, _ in each]), torch.cat([y for _, y in each]), *padded(rows)


def outline(dataset: Dataset) -> dict[str, Any]:
    """What a task needs to know about a data set besides its samples."""
    copied = ("name", "classes", "class_names", "mean", "std", "scale")
    samples = {"shape": dataset.shape, "dtype": str(dataset.x.dtype).removeprefix("torch.")}
    return {key: getattr(dataset, key) for key in copied} | samples


def task_without_data(s: Settings, data: dict[str, Any], device: str) -> Task:
    """The task in a worker: model and schedule, without samples. `data` is the `outline` of the data set."""
    x = torch.empty(0, *data["shape"], dtype=getattr(torch, data["dtype"]))
    y = torch.empty(0, dtype=torch.int64)
    rest = {key: tuple(data[key]) for key in ("class_names", "mean", "std")} | {"scale": data["scale"]}
    dataset = Dataset(data["name"], x, y, x, y, data["classes"], **rest)
    no_clients = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    partition = Partition(s.partition, s.seed, *no_clients, data["classes"], "", {})
    where = resolve_device(device)
    none = Shard({}, where)
    local = Split(Lists(*no_clients), Lists(*no_clients), "test")
    make_body = body_maker(s, s.model, None, dataset)
    return Task(s, dataset, partition, local, make_body, where, none, none, augment_for(s, dataset))


def with_samples(task: Task, train: Mapping[int, Packed], test: Mapping[int, Packed] | None = None) -> Task:
    """The worker's task with the samples of some clients."""
    return task.with_data(Shard(train, task.device), Shard(test or {}, task.device))
