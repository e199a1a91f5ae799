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
from headway.methods.recorded_plugins import of_this_process
from headway.runs.directory import FORMAT, OWN_FILES, OWN_FOLDERS, write_json
from headway.runs.identity import plugins_of

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
            "store": options.store, "layout": task.layout,
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
    labels = task.dataset.y.numpy()
    train = task.local.train.class_counts(labels, task.classes)
    test_labels = labels if task.local.test_from == "train" else task.dataset.y_test.numpy()
    test = task.local.test.class_counts(test_labels, task.classes)
    clients = [
        {"id": k, "n": int(train[k].sum()), "counts": train[k].tolist(), "test_counts": test[k].tolist(),
         "index_hash": task.local.train.client_hash(k)}
        for k in range(len(task.data))
    ]  # fmt: skip
    head = {
        "spec": task.partition.spec,
        "seed": task.seed,
        "hash": task.partition.hash(),
        "local_test": task.settings.local_test,
        "class_names": list(task.dataset.class_names),
    }
    body = ",\n ".join(json.dumps(c) for c in clients)
    notes = json.dumps(task.partition.notes)
    lists = ",\n ".join(json.dumps(task.sampling(t)) for t in range(task.settings.rounds))
    return {
        "partition.json": f'{json.dumps(head)[:-1]}, "notes": {notes}, "clients": [\n {body}\n]}}\n',
        "sampling.json": f"[\n {lists}\n]\n",
    }


def damaged_task_files(out: Path) -> list[str]:
    """Which of partition.json and sampling.json are missing or cut short; their values are not compared."""
    return [name for name in TASK_FILES if not is_complete_json(out / name)]


def is_complete_json(path: Path) -> bool:
    try:
        text = path.read_text()
        json.loads(text)
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
