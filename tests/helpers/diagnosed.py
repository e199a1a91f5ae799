"""Finished runs for the tests of diagnostics: small, on data that the test chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headway.analysis.diagnostics.finding import Finding
from headway.analysis.diagnostics.subject import Subject
from headway.base.tree import stream
from headway.data import Dataset
from headway.runs.runner import execute
from headway.training.settings import settings
from headway.training.task import Task, build

SMALL = {"clients": 4, "rounds": 2, "train_size": 240, "test_size": 90, "model": "mlp_small", "partition": "dir(0.1)"}


def finished(recipe: str, out: Path, task: Task | None = None, **given: Any) -> Subject:
    """The subject of a run that has just ended."""
    torch.set_num_threads(1)
    s = task.settings if task else settings({**SMALL, **given})
    execute(recipe, s, out, task=task)
    return Subject.of(out, task=task)


def blobs(classes: int, names: tuple[str, ...] | None = None, each: int = 8, shape: tuple[int, ...] = (6,)) -> Dataset:
    """Samples around one random point a class; the test set lacks the last class."""
    rng = stream("blobs", classes)
    y = torch.arange(classes).repeat_interleave(each)
    x = torch.randn(classes, *shape, generator=rng)[y] * 2 + torch.randn(len(y), *shape, generator=rng) * 0.3
    known = y < classes - 1
    names = names or tuple(str(c) for c in range(classes))
    zeros, ones = (0.0,) * shape[0], (1.0,) * shape[0]
    return Dataset("blobs", x, y, x[known], y[known], classes, names, zeros, ones, scale=1.0)


def task_on(data: Dataset, **given: Any) -> Task:
    return build(
        settings({"model": "mlp_small", "rounds": 2, "clients": 4, "local_test": "none", **given}), dataset=data
    )


def check_whole(found: Finding, folder: Path) -> None:
    """A finding that saves: every table has lines, the figure is a PNG, and words are there for those who need them."""
    paths = {p.name: p for p in found.save(folder)}
    assert f"{found.name}.json" in paths
    assert paths[f"{found.name}.png"].read_bytes().startswith(b"\x89PNG")
    assert found.about.endswith(".")
    assert len(found.alt) > 20
    for key, rows in found.tables.items():
        assert paths[f"{found.name}.{key}.csv"].read_text().count("\n") >= len(rows) + 1
