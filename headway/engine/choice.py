"""Which engine runs a run's clients, where what they remember rests, and how many threads it has."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headway import machine
from headway.engine.local import LocalEngine
from headway.engine.memory import keep_freed_memory
from headway.engine.pool import PoolEngine
from headway.engine.store import ClientStore, DirectoryStore, SpillingStore
from headway.errors import ConfigError
from headway.recipes import Recipe

if TYPE_CHECKING:
    from headway.experiment import Options
    from headway.task import Task

WORTH_WORKERS = 2e8  # samples x parameters a round, below which handing clients out costs more than it saves


def engine_for(
    recipe: Recipe, task: Task, options: Options, store: ClientStore, tick: Callable[[int, int], None]
) -> LocalEngine:
    """Workers where they help: one a GPU, or with more than one client a round on the CPU; or those of a cluster."""
    if options.engine == "ray":
        from headway.engine.cluster import RayEngine

        return RayEngine(
            recipe, task, options.workers, address=options.address, store=store, tick=tick, say=options.progress.say
        )
    ids = task.everyone() if recipe.trains_everyone else task.sampling(0)
    work = sum(map(task.data.size, ids)) * sum(p.numel() for p in task.first_params(recipe).values())
    auto = machine.cores() if work > WORTH_WORKERS else 1
    workers = min(auto if options.workers is None else options.workers, len(ids))
    if not hasattr(os, "fork"):
        return LocalEngine(store, tick)
    if task.gpus:
        return PoolEngine(recipe, task, min(len(task.gpus), len(ids)), store, tick, options.progress.say)
    if workers < 2 or task.device.type != "cpu":
        return LocalEngine(store, tick)
    return PoolEngine(recipe, task, workers, store, tick, options.progress.say)


def workers_beside(threads: int | None, workers: int | str | None, engine: str) -> int | None:
    """How many workers were asked for, None for as many as help; beside several threads there are none.

    A local worker has one thread, and bits depend on threads: a run of two would go on to other numbers with workers.
    """
    if workers in (None, "auto"):
        return 1 if engine == "local" and threads != 1 else None
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ConfigError(f"workers={workers}: it is not a number of processes; use auto or a whole number from 1")
    if workers > 1 and engine == "local" and threads != 1:
        raise ConfigError(f"workers={workers}: workers have one thread each and threads={threads}; give one of the two")
    return workers


def store_for(out: Path, task: Task, options: Options) -> ClientStore:
    """Where what clients remember rests while the run lasts."""
    return store_in(out / "working", task, options.store)


def passing_store(task: Task, kind: str) -> ClientStore:
    """The same for work on a finished run, whose own folder may be read-only: a temporary one that goes with the store.

    It is made where TMPDIR says.
    """
    folder = Path(tempfile.mkdtemp(prefix="headway-clients-"))
    store = store_in(folder, task, kind)
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)
    return store


def store_in(folder: Path, task: Task, kind: str) -> ClientStore:
    """`memory`, `disk`, or `auto`: memory up to a quarter of the machine's and the folder beyond it."""
    if kind == "memory":
        return ClientStore()
    if kind == "disk":
        return DirectoryStore(folder, task.device)
    return SpillingStore(folder, machine.memory() // 4, task.device)


def set_threads(options: Options) -> None:
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
