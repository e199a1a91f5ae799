"""Calibration and personalisation of a finished run: the saved state, another last step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import rounds
from headway.calibration import spec_of
from headway.checkpoint import Checkpoints
from headway.comparison import slug
from headway.diagnostics.accuracy import global_score, personal_ids
from headway.engine import LocalEngine
from headway.engine.choice import engine_for, passing_store, set_threads
from headway.engine.memory import GiveBackGrowth
from headway.errors import CheckpointError, RecipeError, to_copy
from headway.experiment import Options
from headway.methods import recipe as parse_recipe
from headway.methods.oracle import Oracle
from headway.outcome import Outcome, calibration_note
from headway.rebuilt import check_same, completed, rebuilt
from headway.recipes import Recipe, spell
from headway.rundir import COPY_THE_RUN, Run, check_config, check_writable, prepare_folder, save_tensors
from headway.state import Server
from headway.task import Task
from headway.values import write_atomic


@dataclass(frozen=True)
class Saved:
    """A finished run, with everything the server and the clients remembered."""

    run: Run
    recipe: Recipe
    task: Task
    server: Server
    engine: LocalEngine

    def with_piece(self, text: str, slot: str) -> Recipe:
        """The run's recipe with another piece in this slot."""
        given = [p for p in parse_recipe(text).pieces if p.name != "fedavg"]  # which stands in any recipe
        if [p.slot for p in given] != [slot]:
            kind = {"calib": "a calibration such as ccvr", "personal": "a personalisation such as ft"}[slot]
            raise RecipeError(f"with={text}: it is not {kind}; see `headway list`")
        kept = [spell(p) for p in self.recipe.pieces if p.slot != slot]
        recipe = parse_recipe("+".join([*kept, spell(given[0])]))
        recipe.check(recipe, self.task.dim, self.task.classes)
        return recipe


Say = Callable[[str], None]


def silent(text: str) -> None:
    """Nobody wants to hear it."""


def finished(path: Path) -> Run:
    """A finished run of this version of headway."""
    run = Run(path)
    if not run.done:
        raise CheckpointError(f"{path} is not a finished run; {to_copy('resume', path)} first")
    check_config(run.config, path)
    return run


def asked_of(run: Run, task: Task | None = None) -> tuple[Recipe, Task]:
    """What a run was asked for, with its data at hand."""
    config = run.config
    recipe = parse_recipe(config["recipe"])
    set_threads(Options(threads=config["options"]["threads"]))
    task = (task or rebuilt(run.path, config, config["options"]["device"])).for_recipe(recipe)
    check_same(run.path, config, recipe, task)
    layout = config["options"].get("layout", task.layout).partition("+")[0]  # what any machine can do
    return recipe, task.in_one_process().in_layout(layout)


def load(path: Path, say: Say = silent, task: Task | None = None) -> Saved:
    """The state a finished run ended with."""
    run = finished(path)
    if run.summary["failed"] and run.summary["personal"] is None:
        raise CheckpointError(f"{path} failed: {run.summary['failed']}; run it again with a smaller lr")
    recipe, task = asked_of(run, task)
    found, damaged = Checkpoints(path / "checkpoint", run.config["identity"]).load(task.device)
    for what in damaged:
        say(f"checkpoint {what} is damaged and was passed over")
    if found is None or found.server.round != run.summary["rounds"]:
        raise CheckpointError(f"{path} has lost its last checkpoint; make the run again in another folder")
    store = passing_store(task, run.config["options"]["store"])
    found.fill(store)
    return Saved(run, recipe, task, completed(found.server, recipe, task), LocalEngine(store, GiveBackGrowth()))


def folder_in(path: Path, name: str) -> Path:
    """Where a step saves to inside a finished run; one that cannot be written is refused before any work."""
    finished(path)
    check_writable(path / name, f"run={path}", COPY_THE_RUN)
    return path / name


@contextmanager
def hands(saved: Saved, recipe: Recipe, workers: int | None) -> Iterator[LocalEngine]:
    """Workers for a recipe where they help, for as long as the work lasts; no bit depends on them."""
    how = Options(threads=saved.run.config["options"]["threads"], workers=workers)
    engine = engine_for(recipe, saved.task, how, saved.engine.store, saved.engine.tick)
    try:
        yield engine
    finally:
        engine.close()


def calibrate(
    path: Path, text: str, task: Task | None = None, say: Say = silent, workers: int | None = 1
) -> dict[str, Any]:
    """Before, after, and what the same retraining reaches on real features, the oracle."""
    folder = folder_in(path, "calibrated")
    saved = load(path, say, task)
    recipe = saved.with_piece(text, "calib")
    task = saved.task
    say("calibrating")
    start = rounds.calibration_start(saved.server, recipe, saved.engine.store)
    with hands(saved, recipe, workers) as engine:
        before = global_score(rounds.global_net(start, recipe, task), engine, task)
        net = rounds.finish(saved.server, recipe, task, engine)
        after = global_score(net, engine, task)
    frozen = recipe.head().get("weights", "trainable") != "trainable"
    piece = recipe.decider("calibrate")
    like = {"replace_head": frozen, "global_head": getattr(piece, "global_head", "server")}
    bound = saved.with_piece(spell(Oracle(**like)), "calib")
    say("calibrating on real features")
    with hands(saved, bound, workers) as engine:
        oracle = global_score(rounds.finish(saved.server, bound, task, engine), engine, task)
    name = slug(spell(next(p for p in recipe.pieces if p.slot == "calib")))
    result = {
        "recipe": str(recipe), "before": before.acc, "after": after.acc, "oracle": oracle.acc,
        "balanced_before": before.balanced, "balanced_after": after.balanced,
        "per_class_before": before.per_class, "per_class_after": after.per_class, **calibration_note(net),
    }  # fmt: skip
    prepare_folder(folder, f"run={path}", COPY_THE_RUN)
    save_tensors(net.tensors(), folder / f"{name}.safetensors", str(recipe), spec_of(net))
    write_atomic(folder / f"{name}.json", json.dumps(result, indent=1) + "\n")
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
    with made_whole(top / name, path) as folder, hands(saved, recipe, workers) as engine:
        outcome = Outcome(saved.server, recipe, saved.task, engine, ids, folder, say)
        result = {"recipe": str(recipe), **outcome.personal()}
        write_atomic(folder / "summary.json", json.dumps(result, indent=1) + "\n")
    return result | {"models": str(top / name / "clients")}


@contextmanager
def made_whole(place: Path, run: Path) -> Iterator[Path]:
    """A folder to fill that comes to its place when it is whole; work that is stopped leaves what was there before."""
    half = run / f".{place.parent.name}"
    shutil.rmtree(half, ignore_errors=True)  # left by one that was killed
    prepare_folder(half, f"run={run}", COPY_THE_RUN)
    try:
        yield half
        prepare_folder(place.parent, f"run={run}", COPY_THE_RUN)
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)
    finally:
        shutil.rmtree(half, ignore_errors=True)
