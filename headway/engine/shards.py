"""Clients' data on a cluster: what a worker needs of a client goes to its node when it first trains there, and rests.

The run alone holds the data set. It puts a client's samples into its own node's object store when they are first asked
for; another node fetches them once and its workers read them there, so no other node needs the data set, and none of
them holds more of it than the clients it has trained.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway import machine
from headway.data import Dataset
from headway.data.partition import Lists, Partition
from headway.data.splits import Split
from headway.engine.transport import from_array, to_array
from headway.models.net import chunks
from headway.settings import Settings
from headway.task import ClientData, Task, augment_for, body_maker, resolve_device

if TYPE_CHECKING:
    from headway.engine.remote import Parcel


class Shards:
    """The run's side: references to clients' samples in the object store.

    Only what was asked for is there, up to a number of bytes; what was not asked for longest goes first.
    """

    def __init__(self, put: Callable[[NDArray[np.uint8]], Any], task: Task, budget: int | None = None) -> None:
        self._put, self._task = put, task
        self._budget = machine.memory() // 4 if budget is None else budget
        self._there: OrderedDict[tuple[str, int], tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def train(self, k: int) -> Any:
        """Client k's training samples."""
        return self._reference("train", k, lambda: self._task.data[k])

    def labels(self, k: int) -> Any:
        """Client k's training labels alone, for whoever does not train."""
        return self._reference("labels", k, lambda: self._without_inputs(k))

    def test(self, k: int) -> Any:
        """Client k's own test samples."""
        return self._reference("test", k, lambda: self._task.test(k))

    def part(self, i: int) -> Any:
        """Part i of the global test set."""
        return self._reference("part", i, lambda: (chunks(self._task.dataset.x_test)[i], torch.empty(0)))

    def held_out(self, positions: Tensor) -> Any:
        """The clients' own test samples at these positions; they are the same round after round."""
        number = int.from_bytes(hashlib.sha256(positions.numpy().tobytes()).digest()[:8], "big")
        x = self._task.tests.x
        return self._reference("held out", number, lambda: (x[positions.to(x.device)], torch.empty(0)))

    def _reference(self, what: str, number: int, samples: Callable[[], tuple[Tensor, Tensor]]) -> Any:
        key = what, number
        if key not in self._there:
            x, y = samples()
            parcel = to_array({"x": x, "y": y})
            self._there[key] = self._put(parcel), parcel.nbytes
            self._bytes += parcel.nbytes
        self._there.move_to_end(key)
        while self._bytes > self._budget and len(self._there) > 1:
            _, (_, size) = self._there.popitem(last=False)  # work under way holds references of its own
            self._bytes -= size
        return self._there[key][0]

    def _without_inputs(self, k: int) -> tuple[Tensor, Tensor]:
        data = self._task.data
        i = torch.from_numpy(np.ascontiguousarray(data.parts[k])).to(data.y.device)
        return data.x[:0], data.y.index_select(0, i)


class Shard(ClientData):
    """A worker's side: the samples of the one client it has at hand."""

    def __init__(self, parcel: Parcel | None, device: torch.device) -> None:
        self._parcel, self._device = parcel, device

    def __len__(self) -> int:
        return 1

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        """In memory of their own, as the run gathers them: what lies in the object store is read by others too."""
        value = from_array(self._parcel, self._device)  # type: ignore[arg-type]
        return value["x"], value["y"]

    def size(self, k: int) -> int:
        return len(self[k][1])


def outline(dataset: Dataset) -> dict[str, Any]:
    """What a task must know of a data set besides its samples."""
    told = ("name", "classes", "class_names", "mean", "std", "scale")
    kind = {"shape": dataset.shape, "dtype": str(dataset.x.dtype).removeprefix("torch.")}
    return {key: getattr(dataset, key) for key in told} | kind


def task_without_data(s: Settings, told: dict[str, Any], device: str) -> Task:
    """The task as a worker has it: the model and the schedule, and no sample until one is handed over."""
    x = torch.empty(0, *told["shape"], dtype=getattr(torch, told["dtype"]))
    y = torch.empty(0, dtype=torch.int64)
    rest = {key: tuple(told[key]) for key in ("class_names", "mean", "std")} | {"scale": told["scale"]}
    dataset = Dataset(told["name"], x, y, x, y, told["classes"], **rest)
    nobody = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    partition = Partition(s.partition, s.seed, *nobody, told["classes"], "", {})
    where = resolve_device(device)
    none = Shard(None, where)
    local = Split(Lists(*nobody), Lists(*nobody), "test")
    make_body = body_maker(s, s.model, None, dataset)
    return Task(s, dataset, partition, local, make_body, where, none, none, augment_for(s, dataset))


def at_hand(task: Task, train: Parcel | None, test: Parcel | None = None) -> Task:
    """The worker's task with one client's samples."""
    return replace(task, data=Shard(train, task.device), tests=Shard(test, task.device))
