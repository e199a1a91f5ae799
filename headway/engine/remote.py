"""What a worker on a cluster does: it builds the task from its text, keeps it, and answers for one client at a time.

Nothing here knows Ray. A worker that dies takes nothing with it: what clients remember rests with the run, and their
samples are handed over with the work (shards.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

import headway
from headway import rounds
from headway.client import first_client, train_client
from headway.data import Dataset, load
from headway.engine.local import evaluate_personal, surveyed
from headway.engine.shards import at_hand, outline, task_without_data
from headway.engine.transport import from_array, to_array
from headway.errors import HeadwayError
from headway.methods import recipe as parse_recipe
from headway.models.net import Net
from headway.settings import Settings, settings
from headway.state import Broadcast, Client
from headway.task import Task, build

if TYPE_CHECKING:
    from headway.recipes import Recipe

Parcel = NDArray[np.uint8]  # a value on its way, see transport.to_array
SUMMARY = "summary.json"


def order_of(recipe: Recipe, task: Task, threads: int, whole: bool = False) -> dict[str, Any]:
    """All a worker needs to build the same task, as text, and how to tell that it did.

    The task is `whole` when the worker loads the data set itself; else it is told what the data are like.
    """
    order = {
        "recipe": str(recipe),
        "settings": task.settings.model_dump(),
        "identity": identity_of(recipe, task, whole),
        "device": task.accelerator,  # a worker with one GPU of its own sees it as the first
        "threads": threads,
        "layout": task.layout,
        "folder": str(Path.cwd()),  # names of files start here
    }
    return order if whole else order | {"data": outline(task.dataset)}


def identity_of(recipe: Recipe, task: Task, whole: bool) -> dict[str, Any]:
    """What must agree between the run and its workers for the results to agree."""
    versions = {"headway": headway.__version__, "torch": torch.__version__}
    mine = task.fingerprint() if whole else task.model_fingerprint() | {"first_weights": first_weights(recipe, task)}
    found: dict[str, Any] = json.loads(json.dumps({"recipe": str(recipe)} | mine | versions))
    return found


def first_weights(recipe: Recipe, task: Task) -> str:
    """SHA-256 of the model as it starts: the same name may stand for another model on another node."""
    digest = hashlib.sha256()
    for name, value in (task.first_params(recipe) | task.first_stats(recipe)).items():
        digest.update(f"{name} {list(value.shape)} {value.dtype};".encode())
        digest.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Builder:
    """Tasks from orders; where a task is whole, its data are loaded once."""

    def __init__(self) -> None:
        self._data: dict[tuple[str, str | None], Dataset] = {}

    def build(self, order: dict[str, Any]) -> tuple[Recipe, Task]:
        """The recipe and the task of an order, or one sentence why they cannot be had here."""
        torch.set_num_threads(order["threads"])
        with contextlib.suppress(OSError):  # another machine may not have this folder, nor need it
            os.chdir(order["folder"])
        recipe, s = parse_recipe(order["recipe"]), settings(order["settings"])
        whole = "data" not in order
        if whole:
            task = build(s, dataset=self._dataset(s), device=order["device"]).for_recipe(recipe)
        else:
            task = task_without_data(s, order["data"], order["device"])
        task = task.in_layout(order["layout"])
        here, wanted = identity_of(recipe, task, whole), order["identity"]
        if differ := [k for k in {**wanted, **here} if here.get(k) != wanted.get(k)]:
            shown = ", ".join(f"{k}: {here.get(k)} there, {wanted.get(k)} here" for k in differ[:3])
            raise HeadwayError(f"it differs in {shown}")
        return recipe, task

    def _dataset(self, s: Settings) -> Dataset:
        key = (s.data, s.data_dir)
        if key not in self._data:
            self._data = {key: load(s.data, source=Path(s.data_dir) if s.data_dir else None)}
        return self._data[key]


def present(fault: str = "") -> str:
    """Who this is, and in one sentence what is wrong if it cannot work."""
    return json.dumps({"pid": os.getpid(), "node": platform.node(), "fault": fault})


class Hand:
    """One worker of a run: the task, a reusable net, the broadcast of this round, the samples of the client at hand."""

    def __init__(self, order: str) -> None:
        self.order = json.loads(order)
        self._number = -1  # of the value at hand: every worker unpacks a broadcast once, not once a client
        self._value: Any = None

    def ready(self) -> str:
        """Build the task; says who this is, and in one sentence what is wrong if it cannot work."""
        fault = ""
        try:
            self.recipe, self.task = Builder().build(self.order)
        except HeadwayError as error:
            fault = str(error)
        return present(fault)

    def present(self) -> str:
        """Still there."""
        return present()

    def train(self, number: int, cast: Parcel, k: int, data: Parcel, client: Parcel | None) -> Parcel:
        received = self._cast(number, cast)
        task = at_hand(self.task, data)
        report, after = train_client(self.recipe, task, received, self._client(received, k, client), False)
        return to_array({"report": report, "client": after})

    def personal(
        self, number: int, cast: Parcel, k: int, data: Parcel, test: Parcel, client: Parcel | None, *how: bool
    ) -> Parcel:
        """Phases hold functions and do not travel: they are the recipe's own, or none."""
        received = self._cast(number, cast)
        trains, keep = how
        phases = rounds.personal_phases(self.recipe, self.task) if trains else []
        mine = self._client(received, k, client)
        return to_array(evaluate_personal(self.recipe, at_hand(self.task, data, test), received, mine, phases, keep))

    def survey(self, number: int, net: Parcel, k: int, data: Parcel) -> Parcel:
        return to_array(surveyed(self.recipe, at_hand(self.task, data), self._net(number, net), k))

    @torch.no_grad()
    def logits(self, number: int, net: Parcel, part: Parcel, own: bool) -> Parcel:
        x, _ = at_hand(self.task, part).data[0]
        model = self._net(number, net)
        return to_array({"z": model.personal(x) if own else model(x)})

    def _cast(self, number: int, parcel: Parcel) -> Broadcast:
        if number != self._number:
            self._number, self._value = number, Broadcast(**from_array(parcel, self.task.device))
        cast: Broadcast = self._value
        return cast

    def _net(self, number: int, parcel: Parcel) -> Net:
        if number != self._number:
            value = from_array(parcel, self.task.device)
            self._number, self._value = number, self.task.net_of(value["spec"]).load(value["tensors"]).eval()
        net: Net = self._value
        return net

    def _client(self, cast: Broadcast, k: int, parcel: Parcel | None) -> Client:
        if parcel is None:
            return first_client(self.recipe, self.task, cast, k)
        return Client(**from_array(parcel, self.task.device))


class Runner:
    """One worker of a comparison: whole runs, each in a folder that goes when its files are handed over."""

    def __init__(self, order: str) -> None:
        self.threads = json.loads(order)["threads"]
        self._builder = Builder()

    def ready(self) -> str:
        return present()

    def present(self) -> str:
        return present()

    def run(self, order: str) -> tuple[str, int, list[tuple[str, bytes]]]:
        """(what was wrong with the request, its exit code, the run directory's files with the summary last)."""
        from headway.experiment import Options, execute  # which knows engines, and so this module

        job = json.loads(order)
        try:
            _, task = self._builder.build(job)
            with tempfile.TemporaryDirectory(prefix="headway-run-") as folder:
                how = {key: job[key] for key in ("device", "threads", "store", "watch")}
                options = Options(**how)
                run = execute(job["text"], task.settings, Path(folder) / "run", options, task=task)
                return "", 0, files_of(run.path)
        except HeadwayError as error:
            return f"on node {platform.node()}: {error}", error.exit_code, []


def files_of(run: Path) -> list[tuple[str, bytes]]:
    """A run directory as names and bytes; its summary, which makes a run a finished one, comes last."""
    names = [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return [(name, (run / name).read_bytes()) for name in sorted(names, key=lambda n: (n == SUMMARY, n))]
