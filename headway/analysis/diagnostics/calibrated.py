"""A run's model before and after calibration: the run's own, one made since, or one made for the occasion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.analysis.diagnostics.subject import Subject
from headway.base.errors import CheckpointError, RecipeError
from headway.core.recipe import Recipe, spell
from headway.methods import recipe as parse_recipe
from headway.models.net import Net
from headway.runs.directory import read_model
from headway.training import rounds

ATTEMPTS = (
    "ccvr",
    "ccvr(global_head=mean_of_personal)",  # where classifiers are personal
    "ccvr(replace_head=true)",  # where the classifier is fixed: a linear one takes its place
    "ccvr(replace_head=true,global_head=mean_of_personal)",
)


@dataclass(frozen=True)
class Calibrated:
    """The global model before and after a calibration; both have the same features."""

    name: str  # of the piece: ccvr
    source: str  # how it is written in a recipe and where it comes from, in words
    before: Net
    after: Net


def calibrated(subject: Subject, make: bool = False) -> Calibrated | None:
    """The calibration this run has, the newest one made of it, or, if asked, CCVR on the spot; nothing is written."""
    recipe, path = subject.saved.recipe, subject.saved.run.path
    if recipe.acting("calibrate"):
        return stored(subject, recipe, path / "model.safetensors", "the run's own")
    files = sorted((path / "calibrated").glob("*.safetensors"), key=lambda f: (f.stat().st_mtime_ns, f.name))
    if files:
        _, header = read_model(files[-1])
        try:
            theirs = parse_recipe(header["recipe"])
        except (KeyError, RecipeError):
            raise CheckpointError(f"{files[-1]} does not say what calibrated it; calibrate the run again") from None
        return stored(subject, theirs, files[-1], f"calibrated/{files[-1].name}")
    if not make:
        return None
    if "calibrated" not in subject.kept:
        subject.kept["calibrated"] = on_the_spot(subject)
    found: Calibrated | None = subject.kept["calibrated"]
    return found


def stored(subject: Subject, recipe: Recipe, path: Path, source: str) -> Calibrated:
    tensors, header = read_model(path)
    task = subject.task
    after = task.net_of(header["head"]).load(tensors).eval()
    return pair(subject, recipe, after, source)


def on_the_spot(subject: Subject) -> Calibrated | None:
    """CCVR as `headway calibrate` would do it; None where the recipe has no classifier to calibrate."""
    saved = subject.saved
    for text in ATTEMPTS:
        try:
            recipe = saved.with_piece(text, "calib")
        except RecipeError:
            continue
        subject.say("calibrating")
        after = rounds.finish(saved.server, recipe, saved.task, saved.engine)
        return pair(subject, recipe, after, "made for this figure, not saved")
    return None


def pair(subject: Subject, recipe: Recipe, after: Net, source: str) -> Calibrated:
    """The calibrated net beside the one it was made from."""
    saved = subject.saved
    start = rounds.calibration_start(saved.server, recipe, saved.engine.store)
    piece = next(p for p in recipe.pieces if p.slot == "calib")
    before = rounds.global_net(start, recipe, saved.task)
    return Calibrated(piece.name, f"{spell(piece)}, {source}", before, after)
