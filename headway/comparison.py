"""Several recipes, or several seeds, on one task: run directories, mean and spread, a leaderboard."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.conflicts import check_settings
from headway.data import Dataset, load
from headway.engine.session import check_engine
from headway.errors import CheckpointError, ConfigError, nearest
from headway.experiment import Options, check_fits, execute
from headway.methods import recipe as parse_recipe
from headway.opening import can_continue
from headway.recipes import Recipe
from headway.rundir import Run, is_done, prepare_folder
from headway.settings import Settings
from headway.task import Task, build
from headway.values import write_atomic


def traffic(summary: dict[str, Any]) -> tuple[float, float]:
    """Bytes up and down, what a calibration asked at the end included (D16)."""
    up, down = (summary[f"bytes_{way}"] + summary.get(f"survey_bytes_{way}", 0) for way in ("up", "down"))
    return up, down


FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "global": lambda s: s["global_acc"],
    "last5": lambda s: s["last5"],
    "best": lambda s: s["best"],
    "balanced": lambda s: s["balanced_acc"],
    "personal": lambda s: s["personal"] and s["personal"]["mean"],
    "personal_std": lambda s: s["personal"] and s["personal"]["std"],
    "pooled": lambda s: s["personal"] and s["personal"]["pooled"],
    "megabytes": lambda s: sum(traffic(s)) / 1e6,
    "seconds": lambda s: s["seconds"],
}


@dataclass(frozen=True)
class Row:
    """One recipe over all seeds: the values of each figure, seed by seed."""

    recipe: str
    runs: tuple[Run, ...]
    values: dict[str, list[float | None]]
    failed: int

    def mean(self, figure: str) -> float | None:
        known = self._known(figure)
        return float(np.mean(known)) if known else None

    def std(self, figure: str) -> float | None:
        """Spread over seeds (ddof=0)."""
        known = self._known(figure)
        return float(np.std(known)) if known else None

    def _known(self, figure: str) -> list[float]:
        if figure not in self.values:
            raise KeyError(f"there is no figure '{figure}'; {nearest(figure, self.values)}")
        return [v for v in self.values[figure] if v is not None]


@dataclass(frozen=True)
class Comparison:
    """The leaderboard: recipes by the global accuracy of their last round, never by their best."""

    path: Path
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]

    def records(self) -> list[dict[str, Any]]:
        return [
            {
                "recipe": row.recipe,
                "seeds": list(self.seeds),
                "failed": row.failed,
                **{f: {"mean": row.mean(f), "std": row.std(f), "values": row.values[f]} for f in FIGURES},
                "runs": [str(run.path.relative_to(self.path)) for run in row.runs],
            }
            for row in self.rows
        ]

    def save(self) -> None:
        write_atomic(self.path / "leaderboard.json", json.dumps(self.records(), indent=1) + "\n")
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["recipe", "failed", *(f"{f}_{part}" for f in FIGURES for part in ("mean", "std"))])
        for row in self.rows:
            numbers = [value for f in FIGURES for value in (row.mean(f), row.std(f))]
            table.writerow([safe_cell(row.recipe), row.failed, *("" if v is None else f"{v:.6g}" for v in numbers)])
        write_atomic(self.path / "leaderboard.csv", text.getvalue())

    def report(self, out: str | Path | None = None) -> Path:
        """One HTML page that compares the runs, report.html in their folder unless said otherwise."""
        from headway.report.page import report

        return report([run.path for row in self.rows for run in row.runs], out or self.path / "report.html")

    def __getitem__(self, recipe: str) -> Row:
        for row in self.rows:
            if row.recipe == recipe:
                return row
        raise KeyError(f"there is no recipe '{recipe}' here; {nearest(recipe, [row.recipe for row in self.rows])}")


def same_data(options: Options) -> Callable[[Settings], Task]:
    """Tasks that differ in their seed alone hold one copy of the data."""
    held: list[Dataset] = []

    def make(s: Settings) -> Task:
        if not held:
            held.append(load(s.data, source=Path(s.data_dir) if s.data_dir else None))
        return build(s, dataset=held[0], device=options.device)

    return make


def compare(
    recipes: Sequence[str],
    s: Settings,
    seeds: Sequence[int],
    out: Path,
    options: Options | None = None,
    make_task: Callable[[Settings], Task] | None = None,
    place: Callable[[Recipe, int], Path] | None = None,
    objects: Sequence[str] = (),
) -> Comparison:
    """Every recipe under every seed; runs that are finished in `out` are taken as they are.

    Whole runs go to a cluster's workers only where neither data nor model are `objects`, which cannot be built there.
    """
    options = options or Options()
    make = make_task or same_data(options)
    place = place or (lambda recipe, seed: Path(slug(recipe.title)) / f"seed-{seed}")
    check_engine(options.engine, options.address)
    if not recipes:
        raise ConfigError("recipes: none was given; name at least one, such as fedavg")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds={','.join(map(str, seeds))}: give each seed once, such as 0,1,2")
    parsed = [parse_recipe(text) for text in recipes]
    if twice := [str(r) for i, r in enumerate(parsed) if str(r) in {str(q) for q in parsed[:i]}]:
        raise ConfigError(f"recipes: {twice[0]} is named twice; name each recipe once")
    tasks = {seed: make(s.model_copy(update={"seed": seed})) for seed in seeds}
    if (out / "config.json").exists():
        raise CheckpointError(
            f"out={out}: it holds a run, and a comparison needs a folder of its own; choose another --out"
        )
    done: dict[Path, bool] = {}
    for recipe in parsed:  # recipes and folders are checked before the first one runs
        first = tasks[seeds[0]]
        check_fits(recipe, first.dim, first.classes, first.settings)
        check_settings(recipe, first.settings)
        for seed in seeds:
            folder = out / place(recipe, seed)
            done[folder] = finished(folder, recipe, tasks[seed], options.overwrite)
    prepare_folder(out)
    todo = [
        (text, recipe, tasks[seed], folder)
        for text, recipe in zip(recipes, parsed, strict=True)
        for seed in seeds
        if not done[folder := out / place(recipe, seed)]
    ]
    if options.engine == "ray" and not objects and len(todo) > 1:  # other runs spread their clients instead
        from headway.engine.jobs import Job, spread_runs

        spread_runs([Job(*job) for job in todo], options)
    else:
        for text, _, task, folder in todo:
            execute(text, task.settings, folder, options, task=task, objects=objects)
    rows = [row_of(r.title, [Run(out / place(r, seed), tasks[seed]) for seed in seeds]) for r in parsed]
    rows.sort(key=lambda r: -(r.mean("global") or 0.0))
    comparison = Comparison(out, tuple(rows), tuple(seeds))
    comparison.save()
    return comparison


def finished(folder: Path, recipe: Recipe, task: Task, overwrite: bool) -> bool:
    """Whether the folder holds the whole run of this very request; another run there is refused."""
    if overwrite or not folder.is_dir():
        return False
    can_continue(folder, {"recipe": str(recipe)} | task.fingerprint(), overwrite)
    return is_done(folder)


def row_of(recipe: str, runs: Sequence[Run]) -> Row:
    summaries = [run.summary for run in runs]
    values = {name: [figure(s) for s in summaries] for name, figure in FIGURES.items()}
    return Row(recipe, tuple(runs), values, sum(s["failed"] is not None for s in summaries))


def slug(text: str) -> str:
    """A folder name for a recipe: `moon(mu=5.0)+ccvr` stays readable, nothing else gets through."""
    return re.sub(r"[^a-z0-9+=._,()-]", "_", text.lower()).strip(".") or "run"


def safe_cell(text: str) -> str:
    """Spreadsheets run cells that start like a formula; a quote keeps them text."""
    return "'" + text if text[:1] in "=+-@" else text
