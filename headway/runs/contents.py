"""What a new run directory holds before the first round: config.json, partition.json and sampling.json."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headway.base.serialise import write_atomic
from headway.base.version import __version__
from headway.data.partitions.packed import FEW, checksum
from headway.methods.recorded_plugins import of_this_process
from headway.runs.directory import FORMAT, OWN_FILES, OWN_FOLDERS, write_json
from headway.runs.identity import plugins_of
from headway.training import defaults

if TYPE_CHECKING:
    from headway.core.recipe import Recipe
    from headway.runs.options import Options
from headway.training.task import Task

TASK_FILES = ("partition.json", "sampling.json")
OWN_SUFFIXES = (".safetensors", ".json", ".png", ".csv", ".tmp")


def start_folder(
    out: Path, recipe: Recipe, task: Task, identity: Mapping[str, Any], options: Options, objects: Sequence[str] = ()
) -> None:
    """Write the files of a new run; config.json last, which makes the folder a run."""
    for name, text in task_files(task).items():
        write_atomic(out / name, text)
    write_json(out / "config.json", config_of(recipe, task, identity, options, objects))


def config_of(
    recipe: Recipe, task: Task, identity: Mapping[str, Any], options: Options, objects: Sequence[str]
) -> dict[str, Any]:
    """What config.json holds: enough to run it again. `objects` are those of data and model that no config can name;
    `registered` those named by something that this process alone has."""
    s = task.settings
    registered = of_this_process(s.data, s.model, s.partition)
    return {
        "format": FORMAT,
        "recipe": str(recipe),
        "label": recipe.title,
        "settings": task.settings.model_dump(),
        "options": {
            "device": options.device, "threads": torch.get_num_threads(), **options.record(),
            "store": options.store, **defaults.record(task),
        },
        "objects": list(dict.fromkeys((*objects, *registered))),
        **({"registered": registered} if registered else {}),
        **({"plugins": brought} if (brought := [p.record() for p in plugins_of(recipe, task.settings)]) else {}),
        "identity": dict(identity),
        "versions": {
            "headway": __version__, "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "machine": platform.machine(),
        },
        "command": command_line(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def command_line() -> list[str]:
    """The command as it was typed; of a Python program its name alone."""
    return ["headway", *sys.argv[1:]] if Path(sys.argv[0]).name.startswith("headway") else sys.argv[:1]


def task_files(task: Task) -> dict[str, str]:
    """partition.json: which client has which samples. sampling.json: the clients of each round. The task gives both."""
    lists = ",\n ".join(json.dumps(task.sampling(t)) for t in range(task.settings.rounds))
    return {"partition.json": _who_has_what(task), "sampling.json": f"[\n {lists}\n]\n"}


def _who_has_what(task: Task) -> str:
    """One line per client with its counts and the hash of its positions; with more than FEW clients, packed counts."""
    labels = task.dataset.y.numpy()
    test_labels = labels if task.local.test_from == "train" else task.dataset.y_test.numpy()
    held, tests, classes = task.local.train, task.local.test, task.classes
    head = {
        "spec": task.partition.spec,
        "seed": task.seed,
        "hash": task.partition.hash(),
        "local_test": task.settings.local_test,
        "class_names": list(task.dataset.class_names),
    }
    if len(task.data) > FEW:
        clients = {
            "number": len(task.data),
            "counts": held.packed_counts(labels, classes),
            "test_counts": tests.packed_counts(test_labels, classes),
        }
        body: dict[str, Any] = {**head, "notes": task.partition.notes, "clients": clients}
        return json.dumps(body | {"checksum": checksum(body)}) + "\n"
    train, test = held.class_counts(labels, classes), tests.class_counts(test_labels, classes)
    lines = ",\n ".join(
        json.dumps({"id": k, "n": int(train[k].sum()), "counts": train[k].tolist(), "test_counts": test[k].tolist(),
                    "index_hash": held.client_hash(k)})
        for k in range(len(task.data))
    )  # fmt: skip
    notes = json.dumps(task.partition.notes)
    return f'{json.dumps(head)[:-1]}, "notes": {notes}, "clients": [\n {lines}\n]}}\n'


def damaged_task_files(out: Path) -> list[str]:
    """Which of partition.json and sampling.json are missing or cut short; only packed values have a checksum."""
    return [name for name in TASK_FILES if not is_complete_json(out / name)]


def is_complete_json(path: Path) -> bool:
    try:
        text = path.read_text()
        found = json.loads(text)
        if isinstance(found, dict) and "checksum" in found and found.pop("checksum") != checksum(found):
            return False
    except (OSError, ValueError, RecursionError):
        return False
    return text.endswith("\n")  # the last byte too: a continued run has the bytes of an uninterrupted one


def repair_task_files(out: Path, task: Task, say: Callable[[str], None]) -> None:
    """Write the missing and damaged ones again."""
    damaged = damaged_task_files(out)
    for name in damaged:
        write_atomic(out / name, task_files(task)[name])
    if damaged:
        verb = "was" if len(damaged) == 1 else "were"
        say(f"note: {' and '.join(damaged)} {verb} missing or damaged and {verb} written again")


def clear(out: Path) -> None:
    """Delete headway's own files from a run directory, and nothing else."""
    for name in OWN_FILES:
        (out / name).unlink(missing_ok=True)
    for folder in (out / name for name in OWN_FOLDERS):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in sorted(folder.rglob("*"), reverse=True):  # what is inside comes before its folder
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # a file of the user's is in it
                    path.rmdir()
            elif is_own(path):
                path.unlink()
        with suppress(OSError):
            folder.rmdir()


def is_own(path: Path) -> bool:
    """Whether a file in one of headway's folders is its own; TensorBoard's files have no suffix of their own."""
    by_folder = {
        "tensorboard": path.name.startswith("events.out.tfevents."),
        "tracking": path.suffix == ".jsonl",
        "exported": path.suffix in (".onnx", ".pt2"),
    }
    return path.suffix in OWN_SUFFIXES or by_folder.get(path.parent.name, False)
