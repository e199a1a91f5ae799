"""Several recipes, or several seeds, on one task: run directories, mean and spread, a leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.csv_table import csv_text
from headway.base.errors import CheckpointError, ConfigError, nearest
from headway.base.serialise import write_atomic
from headway.base.text import slug
from headway.core.recipe import Recipe
from headway.data import Dataset, load
from headway.engines.ray.session import check_engine
from headway.methods import recipe as parse_recipe
from headway.runs.checks import check_fits
from headway.runs.cluster_jobs import Job, spread_runs
from headway.runs.directory import another_out, prepare_folder, write_json
from headway.runs.figures import FIGURES
from headway.runs.identity import identity_of, state_of
from headway.runs.options import Options
from headway.runs.run import Run
from headway.runs.runner import execute
from headway.training.settings import Settings
from headway.training.task import Task, build


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
    """A leaderboard: recipes sorted by the global accuracy of their last round, never by their best.

    `headway.compare` returns it, and writes it to leaderboard.json and leaderboard.csv.

    Args:
        path: The folder of the comparison.
        rows: One Row a recipe, the best first: its runs, and each figure seed by seed with mean and std.
        seeds: The seeds each recipe was run with.

    Raises:
        KeyError: `comparison[recipe]` of a recipe, or `row.mean(figure)` of a figure, that is not in it.

    >>> import headway, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> small = {"model": "mlp_small", "rounds": 1, "clients": 2, "train_size": 100}
    >>> result = headway.compare(["fedavg", "fedprox"], seeds=[0, 1], out=folder.name, **small)
    >>> sorted(row.recipe for row in result.rows), result.seeds
    (['fedavg', 'fedprox'], (0, 1))
    >>> 0 <= result["fedavg"].mean("global") <= 1
    True
    >>> [run.path.name for run in result["fedprox"].runs]
    ['seed-0', 'seed-1']
    >>> folder.cleanup()
    """

    path: Path
    rows: tuple[Row, ...]
    seeds: tuple[int, ...]

    def records(self) -> list[dict[str, Any]]:
        """The rows as JSON has them: mean, std and values of every figure, and the run directories."""
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
        """Write leaderboard.json and leaderboard.csv."""
        write_json(self.path / "leaderboard.json", self.records())
        columns = {f"{figure}_{part}": (figure, part) for figure in FIGURES for part in ("mean", "std")}
        rows = [
            {"recipe": row.recipe, "failed": row.failed}
            | {name: getattr(row, part)(figure) for name, (figure, part) in columns.items()}
            for row in self.rows
        ]
        write_atomic(self.path / "leaderboard.csv", csv_text(rows))

    def report(self, out: str | Path | None = None) -> Path:
        """Write one HTML page that compares the runs.

        Args:
            out: The file; report.html in the folder of the comparison unless given.

        Returns:
            The file's path.
        """
        from headway.analysis.report.page import report  # an exception from the layers, as in run.py

        return report([run.path for row in self.rows for run in row.runs], out or self.path / "report.html")

    def __getitem__(self, recipe: str) -> Row:
        for row in self.rows:
            if row.recipe == recipe:
                return row
        raise KeyError(f"there is no recipe '{recipe}' here; {nearest(recipe, [row.recipe for row in self.rows])}")


def same_data(options: Options) -> Callable[[Settings], Task]:
    """A function that builds tasks which share one copy of the data; they may differ in the seed only."""
    held: list[Dataset] = []

    def make(s: Settings) -> Task:
        if not held:
            held.append(load(s.data, source=Path(s.data_dir) if s.data_dir else None))
        return build(s, dataset=held[0], device=options.device)

    return make


def compare(
    recipes: Sequence[str | Recipe],
    s: Settings,
    seeds: Sequence[int],
    out: Path,
    options: Options | None = None,
    make_task: Callable[[Settings], Task] | None = None,
    place: Callable[[Recipe, int], Path] | None = None,
    objects: Sequence[str] = (),
) -> Comparison:
    """Every recipe under every seed; runs that are finished in `out` are taken as they are.

    On a cluster, whole runs are spread over the workers, unless data or model are `objects`, which cannot be built
    there.
    """
    options = options or Options()
    make = make_task or same_data(options)
    place = place or (lambda recipe, seed: Path(slug(recipe.title)) / f"seed-{seed}")
    check_engine(options.engine, options.address)
    if not recipes:
        raise ConfigError("recipes: none was given; name at least one, such as fedavg")
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds={','.join(map(str, seeds))}: give each seed once, such as 0,1,2")
    parsed = [parse_recipe(given) if isinstance(given, str) else given for given in recipes]
    if twice := [str(r) for i, r in enumerate(parsed) if str(r) in {str(q) for q in parsed[:i]}]:
        raise ConfigError(f"recipes: {twice[0]} is named twice; name each recipe once")
    tasks = {seed: make(s.model_copy(update={"seed": seed})) for seed in seeds}
    if (out / "config.json").exists():
        raise CheckpointError(f"out={out}: it holds a run, and a comparison needs a folder of its own; {another_out()}")
    finished: dict[Path, bool] = {}
    for recipe in parsed:  # recipes and folders are checked before the first one runs
        first = tasks[seeds[0]]
        check_fits(recipe, first.dim, first.classes, first.settings)
        for seed in seeds:
            folder = out / place(recipe, seed)
            finished[folder] = (
                not options.overwrite
                and folder.is_dir()
                and (state_of(folder, identity_of(recipe, tasks[seed]), overwrite=False) == "finished")
            )
    prepare_folder(out)
    todo = [
        (given, recipe, tasks[seed], folder)
        for given, recipe in zip(recipes, parsed, strict=True)
        for seed in seeds
        if not finished[folder := out / place(recipe, seed)]
    ]
    if (
        options.engine == "ray" and not objects and len(todo) > 1
    ):  # a single run, or one of objects, spreads its clients instead
        spread_runs([Job(str(given), recipe, task, folder) for given, recipe, task, folder in todo], options)
    else:
        for given, _, task, folder in todo:
            execute(given, task.settings, folder, options, task=task, objects=objects)
    rows = [row_of(r.title, [Run(out / place(r, seed), tasks[seed]) for seed in seeds]) for r in parsed]
    rows.sort(key=lambda r: -(r.mean("global") or 0.0))
    comparison = Comparison(out, tuple(rows), tuple(seeds))
    comparison.save()
    return comparison


def row_of(recipe: str, runs: Sequence[Run]) -> Row:
    summaries = [run.summary for run in runs]
    values = {name: [figure(s) for s in summaries] for name, figure in FIGURES.items()}
    return Row(recipe, tuple(runs), values, sum(s["failed"] is not None for s in summaries))
