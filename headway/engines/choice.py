"""Choice of the engine that trains the clients, of the store that keeps their states, and of the number of threads."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headway.base import machine
from headway.base.names import in_head
from headway.core.recipe import Recipe
from headway.engines.local import LocalEngine
from headway.engines.memory import keep_freed_memory
from headway.engines.options import EngineOptions, workers_beside
from headway.engines.pool import PoolEngine
from headway.engines.store import ClientStore, DirectoryStore, SpillingStore
from headway.training.cohort import cohorts, native_perceptron
from headway.training.probe import probed

if TYPE_CHECKING:
    from headway.training.task import Task

__all__ = ["engine_for", "passing_store", "set_threads", "store_for", "workers_beside"]
WORTH_WORKERS = 5e8  # floating-point operations of a round; below, worker processes cost more time than they save
STARTS = 10  # times as many of the whole run, for starting them
PER_CLIENT = 1e7  # operations that a worker could save while a client that trains alone is prepared


def engine_for(
    recipe: Recipe, task: Task, options: EngineOptions, store: ClientStore, tick: Callable[[int, int], None]
) -> LocalEngine:
    """The engine for a run: Ray if asked for; worker processes, one per GPU or several on the CPU; else this process.

    Without a given number, the CPU gets workers only if a round is large enough and has more than one client.
    """
    if options.engine == "ray":
        from headway.engines.ray.engine import RayEngine

        return RayEngine(
            recipe, task, options.workers, address=options.address, store=store, tick=tick, say=options.progress.say
        )
    ids = task.everyone() if recipe.trains_everyone else task.sampling(0)
    auto = machine.cores() if options.workers is None and worth_workers(recipe, task, ids) else 1
    workers = min(auto if options.workers is None else options.workers, len(ids))
    if not hasattr(os, "fork"):
        return LocalEngine(store, tick)
    if task.gpus:
        return PoolEngine(recipe, task, min(len(task.gpus), len(ids)), store, tick, options.progress.say)
    if workers < 2 or task.device.type != "cpu":
        return LocalEngine(store, tick)
    if options.workers is None and native_perceptron(recipe, task):
        return LocalEngine(store, tick, threads=workers)  # nothing has to be copied from process to process
    return PoolEngine(recipe, task, workers, store, tick, options.progress.say)


def worth_workers(recipe: Recipe, task: Task, ids: Sequence[int]) -> bool:
    """Whether a round of these clients, with its evaluation, gains from worker processes."""
    s, forward = task.settings, forward_work(recipe, task)
    alone = sum(len(unit) == 1 for unit in cohorts(recipe, task, ids))
    trained = 3 * forward * sum(map(task.data.size, ids)) * s.epochs
    evaluated = forward * len(task.dataset.y_test) / int(s.eval_every)
    work = trained + evaluated + PER_CLIENT * alone
    return work > WORTH_WORKERS and work * s.rounds > STARTS * WORTH_WORKERS


def forward_work(recipe: Recipe, task: Task) -> float:
    """Floating-point operations of a forward pass of one sample; that of a body that refuses a probe is estimated."""
    params = task.first_params(recipe)
    seen = sum(layer.work for layer in probed(task))
    return seen + 2.0 * sum(p.numel() for name, p in params.items() if in_head(name) or not seen)


def store_for(out: Path, task: Task, options: EngineOptions) -> ClientStore:
    """Where client states are kept during the run."""
    return store_in(out / "working", task, options.store)


def passing_store(task: Task, kind: str) -> ClientStore:
    """A store for work on a finished run, whose own folder may be read-only.

    It uses a temporary folder (in TMPDIR, if set), which is deleted with the store.
    """
    folder = tempfile.TemporaryDirectory(prefix="headway-clients-", ignore_cleanup_errors=True)
    store = store_in(Path(folder.name), task, kind)  # a signal that ends it here deletes the folder too
    weakref.finalize(store, folder.cleanup)
    return store


def store_in(folder: Path, task: Task, kind: str) -> ClientStore:
    """A store in memory, on disk, or `auto`: up to a quarter of the machine's memory, the rest in the folder."""
    if kind == "memory":
        return ClientStore()
    if kind == "disk":
        return DirectoryStore(folder, task.device)
    return SpillingStore(folder, machine.memory() // 4, task.device)


def set_threads(options: EngineOptions) -> None:
    """Set the number of torch threads, and let the C library keep freed memory."""
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
