"""A worker on a cluster: it builds the task from the run's order, keeps it, and works on one client at a time.

This module does not import Ray. Nothing is lost when a worker dies: the run keeps the client states, and sends them
and the samples (shards.py) with each call.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from headway.base.errors import HeadwayError
from headway.base.version import __version__
from headway.base.wording import on_command_line, speak_as
from headway.core.state import Broadcast, Client
from headway.data import Dataset, load
from headway.engines.local import evaluate_personal, surveyed
from headway.engines.ray.shards import outline, task_without_data, with_samples
from headway.engines.transport import from_array, packable, to_array
from headway.methods import recipe as parse_recipe
from headway.methods import recorded_plugins
from headway.models.net import Net
from headway.training import defaults, rounds
from headway.training.client import first_client
from headway.training.cohort import train_cohort
from headway.training.settings import Settings, settings
from headway.training.task import Task, build

if TYPE_CHECKING:
    from headway.core.recipe import Recipe

Packed = NDArray[np.uint8]  # a value as bytes, see transport.to_array


def order_of(recipe: Recipe, task: Task, threads: int, whole: bool = False) -> dict[str, Any]:
    """What a worker needs to build the same task, as JSON values, and the identity by which it checks the result.

    `whole`: the worker loads the data set itself; otherwise the order holds an outline of the data set.
    """
    s = task.settings
    order = {
        "recipe": str(recipe),
        "settings": task.settings.model_dump(),
        "identity": shared_facts(recipe, task, whole),
        "device": task.accelerator,  # without an index: a worker sees only the GPU reserved for it
        "threads": threads,
        **defaults.record(task),
        "folder": str(Path.cwd()),  # relative paths of files start here
        "commands": on_command_line(),  # what a message on the worker advises
        "plugins": recorded_plugins.sent(recorded_plugins.used_by(recipe, s.data, s.model, s.partition)),
    }
    return order if whole else order | {"data": outline(task.dataset)}


def shared_facts(recipe: Recipe, task: Task, whole: bool) -> dict[str, Any]:
    """What must agree between the run and its workers for the results to agree."""
    versions = {"headway": __version__, "torch": torch.__version__}
    mine = task.fingerprint() if whole else task.model_fingerprint() | {"first_weights": first_weights(recipe, task)}
    found: dict[str, Any] = json.loads(json.dumps({"recipe": str(recipe)} | mine | versions))
    return found


def first_weights(recipe: Recipe, task: Task) -> str:
    """SHA-256 of the model's first weights: the same name may mean another model on another node."""
    digest = hashlib.sha256()
    for name, value in (task.first_params(recipe) | task.first_stats(recipe)).items():
        digest.update(f"{name} {list(value.shape)} {value.dtype};".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Builder:
    """Builds tasks from orders. The data set of a whole task is kept for the next one."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str | None], Dataset] = {}

    def build(self, order: dict[str, Any]) -> tuple[Recipe, Task]:
        """The recipe and the task of an order; raises HeadwayError if they cannot be built on this node."""
        torch.set_num_threads(order["threads"])
        speak_as(order["commands"])
        with contextlib.suppress(OSError):  # another machine may not have this folder, and may not need it
            os.chdir(order["folder"])
        recorded_plugins.receive(order["plugins"])
        recipe, s = parse_recipe(order["recipe"]), settings(order["settings"])
        whole = "data" not in order
        if whole:
            task = build(s, dataset=self._dataset(s), device=order["device"]).for_recipe(recipe)
        else:
            task = task_without_data(s, order["data"], order["device"])
        task = defaults.as_recorded(task, order)
        here, wanted = shared_facts(recipe, task, whole), order["identity"]
        if differ := [k for k in {**wanted, **here} if here.get(k) != wanted.get(k)]:
            shown = ", ".join(f"{k}: {here.get(k)} there, {wanted.get(k)} here" for k in differ[:3])
            raise HeadwayError(f"it differs in {shown}")
        return recipe, task

    def _dataset(self, s: Settings) -> Dataset:
        key = (s.data, s.data_dir)
        if key not in self._data:
            self._data = {key: load(s.data, source=Path(s.data_dir) if s.data_dir else None)}
        return self._data[key]


def identify(fault: str = "") -> str:
    """JSON with the worker's process id, its node, and one sentence on what is wrong, if anything."""
    return json.dumps({"pid": os.getpid(), "node": platform.node(), "fault": fault})


class ClientWorker:
    """One worker of a run. It keeps the task, a net, and the broadcast of the round."""

    def __init__(self, order: str) -> None:
        self.order = json.loads(order)
        self._number = -1  # of the broadcast in `_value`, which is unpacked once and not once per client
        self._value: Any = None

    def ready(self) -> str:
        """Build the task; returns `identify`, with the reason if the task cannot be built."""
        fault = ""
        try:
            self.recipe, self.task = Builder().build(self.order)
        except HeadwayError as error:
            fault = str(error)
        return identify(fault)

    def identify(self) -> str:
        """Show that the worker is alive."""
        return identify()

    def train(self, number: int, cast: Packed, unit: tuple[int, ...], *sent: Packed) -> Packed:
        """Train the clients of a unit; `sent`: the samples of each, then the state of each or None."""
        received, count = self._cast(number, cast), len(unit)
        task = with_samples(self.task, dict(zip(unit, sent[:count], strict=True)))
        clients = [self._client(received, k, state) for k, state in zip(unit, sent[count:], strict=True)]
        return to_array(packable(*train_cohort(self.recipe, task, received, clients, own_memory=False)))

    def personal(
        self, number: int, cast: Packed, k: int, data: Packed, test: Packed, client: Packed | None, *how: Any
    ) -> Packed:
        """Evaluate a client's own model; `how`: whether to train it, whether to return its tensors, what is known.

        Phases contain functions and cannot be sent, so they are made here, from the recipe.
        """
        received = self._cast(number, cast)
        trains, keep, known = how
        phases = rounds.personal_phases(self.recipe, self.task) if trains else []
        mine = self._client(received, k, client)
        task = with_samples(self.task, {k: data}, {k: test})
        return to_array(evaluate_personal(self.recipe, task, received, mine, phases, keep, known))

    def survey(self, number: int, net: Packed, k: int, data: Packed) -> Packed:
        return to_array(surveyed(self.recipe, with_samples(self.task, {k: data}), self._net(number, net), k))

    @torch.no_grad()
    def logits(self, number: int, net: Packed, part: Packed, own: bool) -> Packed:
        x, _ = with_samples(self.task, {0: part}).data[0]
        model = self._net(number, net)
        return to_array({"z": model.logits_of(x, personal=own)})

    def _cast(self, number: int, packed: Packed) -> Broadcast:
        if number != self._number:
            self._number, self._value = number, Broadcast(**from_array(packed, self.task.device))
        cast: Broadcast = self._value
        return cast

    def _net(self, number: int, packed: Packed) -> Net:
        if number != self._number:
            value = from_array(packed, self.task.device)
            self._number, self._value = number, self.task.net_of(value["spec"]).load(value["tensors"]).eval()
        net: Net = self._value
        return net

    def _client(self, cast: Broadcast, k: int, packed: Packed | None) -> Client:
        if packed is None:
            return first_client(self.recipe, self.task, cast, k)
        return Client(**from_array(packed, self.task.device))
