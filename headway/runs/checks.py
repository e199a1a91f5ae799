"""What is checked before a run, and what a user should know before its first round."""

from __future__ import annotations

import numpy as np

from headway.base.errors import WidthError
from headway.base.tree import stream
from headway.core import compatibility
from headway.core.compatibility import Setup
from headway.core.recipe import Recipe
from headway.data import DATASETS
from headway.models import MODELS, body
from headway.training import rounds
from headway.training.settings import Settings
from headway.training.task import Task


def notes_of(recipe: Recipe, task: Task) -> list[str]:
    """What a user should know before the first round."""
    return [*compatibility.check(rounds.setup_of(recipe, task)), *partition_notes(task)]


def auto_notes(asked: Settings, task: Task) -> list[str]:
    """What was chosen where the user left it to headway."""
    if asked.eval_every != "auto":
        return []
    every = int(task.settings.eval_every)
    rounds = "every round" if every == 1 else f"every {every} rounds, and after the last"
    return [f"eval_every=auto: the model is evaluated after {rounds}"]


def partition_notes(task: Task) -> list[str]:
    """What a user should know about the data and how clients got them."""
    notes = task.partition.notes
    counts = np.bincount(task.dataset.y.numpy(), minlength=task.classes)
    empty = [str(name) for name, n in zip(task.dataset.class_names, counts, strict=True) if not n]
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    found = [f"data={task.dataset.name}: no training sample of class {', '.join(empty[:5])}{more}"] if empty else []
    if notes.get("dropped"):
        found.append(f"{task.partition.spec}: {notes['dropped']} training samples belong to no client and are left out")
    if notes.get("refilled"):
        found.append(f"{task.partition.spec}: {notes['refilled']} samples were moved to clients that had too few")
    if notes.get("note"):
        found.append(f"{task.partition.spec}: {notes['note']}")
    return [*found, task.dataset.note] if task.dataset.note and task.settings.data not in DATASETS else found


def check_before_loading(recipe: Recipe, s: Settings) -> None:
    """Refuse a recipe that does not fit a known data set and model, before anything is downloaded."""
    entry = DATASETS.get(s.data)
    if entry is None or s.model not in MODELS or not entry.shape:
        return
    dim = body(s.model, entry.shape, bn=s.bn_of(s.model), seed_stream=stream(s.seed, "init")).dim
    check_fits(recipe, int(dim), entry.classes, s)  # type: ignore[arg-type]


def check_fits(recipe: Recipe, dim: int, classes: int, s: Settings) -> None:
    """The recipe's own checks; where the body is too narrow, model and data are named too."""
    try:
        compatibility.check(Setup(recipe, dim, classes, s.rounds, s.lr, s.persist_momentum, s.personal_from))
    except WidthError as error:
        raise WidthError(f"{error} (model={s.model}, data={s.data})") from None
