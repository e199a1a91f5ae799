"""How a run directory begins: whether it may be used, what it opens with, whether it is continued."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headway
from headway.errors import CheckpointError
from headway.recipes import Recipe
from headway.rundir import FORMAT, OWN_FILES, command_line, read_json
from headway.values import write_atomic

if TYPE_CHECKING:
    from headway.experiment import Options
    from headway.task import Task


def can_continue(out: Path, identity: Mapping[str, Any], overwrite: bool) -> bool:
    """Whether the directory holds an unfinished run of this request; another run there is never overwritten."""
    if not (out / "config.json").exists():
        ours = {*OWN_FILES, "checkpoint", "clients", "working"}  # what a run killed in its first moment leaves
        foreign = [p.name for p in out.iterdir() if not p.name.startswith(".") and p.name not in ours]
        if foreign and not overwrite:
            raise CheckpointError(
                f"out={out}: the folder is not empty ({foreign[0]}, ...) and holds no run; choose another --out"
            )
        return False
    if overwrite:
        return False
    config = read_json(out / "config.json")
    found = config.get("identity", {}) if isinstance(config, dict) else {}
    differ = [k for k in {**found, **identity} if found.get(k) != identity.get(k)]
    if differ:
        shown = ", ".join(f"{k}={found.get(k)}" for k in differ[:3])
        raise CheckpointError(
            f"out={out}: it holds another run ({shown}); choose another --out, or --overwrite to replace it"
        )
    return not (out / "summary.json").exists()


def clear(out: Path) -> None:
    """Start anew: remove this tool's own files, nothing else."""
    for name in OWN_FILES:
        (out / name).unlink(missing_ok=True)
    for name in ("checkpoint", "clients", "working"):
        shutil.rmtree(out / name, ignore_errors=True)


def write_head(out: Path, recipe: Recipe, task: Task, identity: Mapping[str, Any], options: Options) -> None:
    """config.json and partition.json: enough to run it again."""
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
    }
    body = ",\n ".join(json.dumps(c) for c in clients)
    notes = json.dumps(task.partition.notes)
    write_atomic(out / "partition.json", f'{json.dumps(head)[:-1]}, "notes": {notes}, "clients": [\n {body}\n]}}\n')
    lists = ",\n ".join(json.dumps(task.sampling(t)) for t in range(task.settings.rounds))
    write_atomic(out / "sampling.json", f"[\n {lists}\n]\n")
    config = {
        "format": FORMAT,
        "recipe": str(recipe),
        "label": recipe.title,
        "settings": task.settings.model_dump(),
        "options": {
            "device": options.device, "threads": torch.get_num_threads(), **options.engine_record(),
            "store": options.store,
        },
        "identity": dict(identity),
        "versions": {
            "headway": headway.__version__, "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "machine": platform.machine(),
        },
        "command": command_line(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    write_atomic(out / "config.json", json.dumps(config, indent=1) + "\n")
