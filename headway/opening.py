"""How a run directory begins: whether it may be used, what it opens with, whether it is continued."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headway
from headway.errors import CheckpointError
from headway.recipes import Recipe
from headway.rundir import FORMAT, OWN_FILES, command_line, is_done, is_whole_model, read_json
from headway.values import write_atomic

if TYPE_CHECKING:
    from headway.experiment import Options
    from headway.task import Task


OWN_FOLDERS = (
    "checkpoint", "clients", "working", "calibrated", "personalised", "diagnostics", "exported", "tensorboard",
    "tracking",
)  # fmt: skip
DRAWN_FILES = ("partition.json", "sampling.json")
OWN_SUFFIXES = (".safetensors", ".json", ".png", ".csv", ".tmp")


def can_continue(out: Path, identity: Mapping[str, Any], overwrite: bool) -> bool:
    """Whether the directory holds an unfinished run of this request; another run there is never overwritten."""
    if not (out / "config.json").exists():
        ours = {*OWN_FILES, *OWN_FOLDERS}  # what a run killed in its first moment leaves
        foreign = [p.name for p in out.iterdir() if not p.name.startswith(".") and p.name not in ours]
        if foreign:
            raise CheckpointError(
                f"out={out}: the folder is not empty ({foreign[0]}, ...) and holds no run; choose another --out"
            )
        return False
    config = read_json(out / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("identity"), dict):
        raise CheckpointError(
            f"out={out}: its config.json is not headway's, so nothing is replaced; choose another --out"
        )
    if overwrite:
        return False
    if differ := differences(config["identity"], identity):
        raise CheckpointError(
            f"out={out}: it holds another run ({differ}); choose another --out, or --overwrite to replace it"
        )
    return not (is_done(out) and is_whole_model(out / "model.safetensors"))  # the checkpoint has what made the model


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What sets two runs apart, in words: both sides of a setting; of a file, that it has changed."""
    differ = [k for k in {**there, **here} if there.get(k) != here.get(k)]
    changed = {"data_hash": "data", "model_hash": "model", "weights_hash": "weights", "body_hash": "model"}
    told = []
    for key in differ:
        if key == "partition_hash" and any(k in differ for k in ("data_hash", "partition", "clients", "seed")):
            continue  # it follows from the others
        name = changed.get(key)
        text = (
            f"{name} {there.get(name)} has changed since"
            if name
            else f"{key}: {there.get(key)} there, {here.get(key)} here"
        )
        if name not in differ:
            told.append(text)
    return ", ".join(told[:3])


def clear(out: Path) -> None:
    """Start anew: remove this tool's own files, nothing else."""
    for name in OWN_FILES:
        (out / name).unlink(missing_ok=True)
    for folder in (out / name for name in OWN_FOLDERS):
        if folder.is_symlink() or not folder.is_dir():
            continue
        for path in sorted(folder.rglob("*"), reverse=True):  # what is inside comes before its folder
            if path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # somebody's file is in it
                    path.rmdir()
            elif is_own(path):
                path.unlink()
        with suppress(OSError):
            folder.rmdir()


def is_own(path: Path) -> bool:
    """Whether a file in one of this tool's folders is its own; TensorBoard's files have no suffix of their own."""
    by_folder = {
        "tensorboard": path.name.startswith("events.out.tfevents."),
        "tracking": path.suffix == ".jsonl",
        "exported": path.suffix in (".onnx", ".pt2"),
    }
    return path.suffix in OWN_SUFFIXES or by_folder.get(path.parent.name, False)


def drawn_files(task: Task) -> dict[str, str]:
    """partition.json and sampling.json: who has which data, and who takes part when; both follow from the task."""
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


def damaged_drawn_files(out: Path) -> list[str]:
    """Which of them are missing or cut short; what is whole JSON is taken as it stands."""
    return [name for name in DRAWN_FILES if not is_whole_json(out / name)]


def is_whole_json(path: Path) -> bool:
    try:
        text = path.read_text()
        json.loads(text)
    except (OSError, ValueError, RecursionError):
        return False
    return text.endswith("\n")  # the last byte too: a continued run has the bytes of an uninterrupted one


def mend_drawn_files(out: Path, task: Task, say: Callable[[str], None]) -> None:
    """Write the missing and damaged ones again."""
    damaged = damaged_drawn_files(out)
    for name in damaged:
        write_atomic(out / name, drawn_files(task)[name])
    if damaged:
        verb = "was" if len(damaged) == 1 else "were"
        say(f"note: {' and '.join(damaged)} {verb} missing or damaged and {verb} written again")


def write_head(
    out: Path, recipe: Recipe, task: Task, identity: Mapping[str, Any], options: Options, objects: Sequence[str] = ()
) -> None:
    """config.json, partition.json and sampling.json: enough to run it again."""
    for name, text in drawn_files(task).items():
        write_atomic(out / name, text)
    config = {
        "format": FORMAT,
        "recipe": str(recipe),
        "label": recipe.title,
        "settings": task.settings.model_dump(),
        "options": {
            "device": options.device, "threads": torch.get_num_threads(), **options.record(),
            "store": options.store, "layout": task.layout,
        },
        "objects": list(objects),
        "identity": dict(identity),
        "versions": {
            "headway": headway.__version__, "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "machine": platform.machine(),
        },
        "command": command_line(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    write_atomic(out / "config.json", json.dumps(config, indent=1) + "\n")
