"""Calibrate or personalise a finished run: from its saved state, with another last step."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, RecipeError
from headway.base.text import slug
from headway.base.wording import resume_call
from headway.core import compatibility
from headway.core.recipe import Recipe, spell
from headway.core.state import Server
from headway.engines import LocalEngine
from headway.engines.choice import engine_for, passing_store, set_threads
from headway.engines.memory import GiveBackGrowth
from headway.methods import calibration_bound
from headway.methods import recipe as parse_recipe
from headway.metrics.accuracy import global_score, personal_ids
from headway.runs.checkpoint import Checkpoints
from headway.runs.directory import (
    COPY_THE_RUN,
    NEW_FOLDER,
    check_config,
    check_writable,
    prepare_folder,
    save_tensors,
    write_json,
)
from headway.runs.finish import Outcome, calibration_note
from headway.runs.options import Options
from headway.runs.rebuild import recorded_recipe, unchanged_task
from headway.runs.run import Run
from headway.training import defaults, rounds
from headway.training.task import Task


@dataclass(frozen=True)
class Saved:
    """A finished run with the states of server and clients."""

    run: Run
    recipe: Recipe
    task: Task
    server: Server
    engine: LocalEngine

    def with_piece(self, text: str, slot: str) -> Recipe:
        """The run's recipe with another piece in this slot."""
        given = [p for p in parse_recipe(text).pieces if "default" not in p.provides()]
        if [p.slot for p in given] != [slot]:
            kind = {"calib": "a calibration such as ccvr", "personal": "a personalisation such as ft"}[slot]
            raise RecipeError(f"with={text}: it is not {kind}; see `headway list`")
        kept = [spell(p) for p in self.recipe.pieces if p.slot != slot]
        recipe = parse_recipe("+".join([*kept, spell(given[0])]))
        compatibility.check(rounds.setup_of(recipe, self.task))
        return recipe


Say = Callable[[str], None]


def silent(text: str) -> None:
    """Report nothing."""


def finished(path: Path) -> Run:
    """A finished run of this version of headway."""
    run = Run(path)
    if not run.done:
        raise CheckpointError(f"{path} is not a finished run; {resume_call(path)} first")
    check_config(run.config, path)
    return run


def recipe_and_task(run: Run, task: Task | None = None) -> tuple[Recipe, Task]:
    """The recipe and the task of a run, with its data, for work in this process."""
    config = run.config
    recipe = recorded_recipe(run.path, config)
    set_threads(Options(threads=config["options"]["threads"]))
    task, _ = unchanged_task(run.path, config, recipe, task, config["options"]["device"])
    options = dict(config["options"])
    options["layout"] = options.get("layout", "channels_first").partition("+")[0]  # what not every machine can do
    return recipe, defaults.as_recorded(task.in_one_process(), options)


def load(path: Path, say: Say = silent, task: Task | None = None) -> Saved:
    """The state a finished run ended with."""
    run = finished(path)
    if run.summary["failed"] and run.summary["personal"] is None:
        raise CheckpointError(f"{path} failed: {run.summary['failed']}; run it again with a smaller lr")
    recipe, task = recipe_and_task(run, task)
    found = Checkpoints(path / "checkpoint", run.config["identity"]).restore(recipe, task, say)
    if found is None or found.server.round != run.summary["rounds"]:
        raise CheckpointError(f"{path} has lost its last checkpoint; {NEW_FOLDER}")
    store = passing_store(task, run.config["options"]["store"])
    found.fill(store)
    return Saved(run, recipe, task, found.server, LocalEngine(store, GiveBackGrowth()))


def folder_in(path: Path, name: str) -> Path:
    """The folder inside a finished run that a step writes to; refused before any work if it cannot be written."""
    finished(path)
    check_writable(path / name, f"run={path}", COPY_THE_RUN)
    return path / name


@contextmanager
def engine_of(saved: Saved, recipe: Recipe, workers: int | None) -> Iterator[LocalEngine]:
    """An engine for this recipe, with worker processes where they help; no bit depends on them."""
    how = Options(threads=saved.run.config["options"]["threads"], workers=workers)
    engine = engine_for(recipe, saved.task, how, saved.engine.store, saved.engine.tick)
    try:
        yield engine
    finally:
        engine.close()


def calibrate(
    path: Path, text: str, task: Task | None = None, say: Say = silent, workers: int | None = 1
) -> dict[str, Any]:
    """Accuracies before and after a calibration, and after the same retraining on real features, the oracle."""
    folder = folder_in(path, "calibrated")
    saved = load(path, say, task)
    recipe = saved.with_piece(text, "calib")
    task = saved.task
    say("calibrating")
    start = rounds.calibration_start(saved.server, recipe, saved.engine.store)
    with engine_of(saved, recipe, workers) as engine:
        before = global_score(rounds.global_net(start, recipe, task), engine, task)
        net = rounds.finish(saved.server, recipe, task, engine)
        after = global_score(net, engine, task)
    bound = saved.with_piece(spell(calibration_bound(recipe)), "calib")
    say("calibrating on real features")
    with engine_of(saved, bound, workers) as engine:
        oracle = global_score(rounds.finish(saved.server, bound, task, engine), engine, task)
    name = slug(spell(next(p for p in recipe.pieces if p.slot == "calib")))
    result = {
        "recipe": str(recipe), "before": before.acc, "after": after.acc, "oracle": oracle.acc,
        "balanced_before": before.balanced, "balanced_after": after.balanced,
        "per_class_before": before.per_class, "per_class_after": after.per_class, **calibration_note(net),
    }  # fmt: skip
    prepare_folder(folder, f"run={path}", COPY_THE_RUN)
    save_tensors(net.tensors(), folder / f"{name}.safetensors", str(recipe), net.head_spec)
    write_json(folder / f"{name}.json", result)
    return result | {"model": str(folder / f"{name}.safetensors")}


def personalise(
    path: Path, text: str, task: Task | None = None, say: Say = silent, workers: int | None = 1
) -> dict[str, Any]:
    """Personal accuracy as received and after every stage; the clients' models are saved."""
    top = folder_in(path, "personalised")
    saved = load(path, say, task)
    recipe = saved.with_piece(text, "personal")
    if not recipe.acting("personalise"):
        raise RecipeError(f"with={text}: it acts during the rounds and not after them; put it into the recipe of a run")
    name = slug(spell(next(p for p in recipe.pieces if p.slot == "personal")))
    ids = personal_ids(saved.task)
    with replaced_folder(top / name, path) as folder, engine_of(saved, recipe, workers) as engine:
        outcome = Outcome(saved.server, recipe, saved.task, engine, ids, folder, say)
        result = {"recipe": str(recipe), **outcome.personal()}
        write_json(folder / "summary.json", result)
    return result | {"models": str(top / name / "clients")}


@contextmanager
def replaced_folder(place: Path, run: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `place` at the end; interrupted work leaves the old folder in place."""
    temporary = run / f".{place.parent.name}"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
    prepare_folder(temporary, f"run={run}", COPY_THE_RUN)
    try:
        yield temporary
        prepare_folder(place.parent, f"run={run}", COPY_THE_RUN)
        shutil.rmtree(place, ignore_errors=True)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
