"""A figure made again: its runs, the diagnostics of each, and all of them in one picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.analysis.diagnostics.catalogue import WITHOUT_MODEL
from headway.analysis.diagnostics.diagnose import Results, diagnose
from headway.analysis.diagnostics.finding import forget
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.reproduce import joint, trainings
from headway.analysis.reproduce.assumptions import assumptions
from headway.analysis.reproduce.figures import Preset
from headway.analysis.reproduce.joint import Curve
from headway.analysis.reproduce.plan import Cell
from headway.analysis.reproduce.protocols import PROTOCOLS
from headway.analysis.reproduce.run_table import common
from headway.analysis.reproduce.table import comparable, departures
from headway.base.errors import CheckpointError, ConfigError, DataError, HeadwayError, PartitionError
from headway.base.serialise import write_atomic
from headway.base.strict_json import strict
from headway.base.text import slug
from headway.base.tree import Tree
from headway.core.state import Server
from headway.engines import ClientStore, LocalEngine
from headway.runs.compare import same_data
from headway.runs.directory import check_writable, prepare_folder
from headway.runs.options import Options
from headway.runs.posthoc import Saved
from headway.runs.rebuild import recorded_recipe
from headway.runs.run import Run
from headway.runs.watched import WATCHED
from headway.training.settings import Settings
from headway.training.task import Task


@dataclass(frozen=True)
class FigureResult:
    """What came of a figure."""

    preset: Preset
    scale: str
    command: str
    folder: Path
    seed: int
    ran: Mapping[str, Any]  # the settings that all runs share
    curves: tuple[Curve, ...]
    missing: Mapping[str, str]  # what was not run -> why
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings that --set put in place of the paper's

    @property
    def labels(self) -> list[str]:
        return joint.names(self.curves, ("method", "partition"))

    @property
    def notes(self) -> list[str]:
        own = [self.preset.chosen] if self.preset.chosen else []
        text = assumptions([curve.cell for curve in self.curves])
        return [*text, *own, *departures(self.scale, self.changes)]

    def record(self) -> dict[str, Any]:
        return strict({
            "name": self.preset.name,
            "shows": self.preset.shows,
            "scale": self.scale,
            "seed": self.seed,
            "command": self.command,
            "folder": str(self.folder),
            "ran": dict(self.ran),
            "changes": dict(self.changes),
            "comparable": comparable(self.scale, self.changes),
            "runs": [
                {"method": c.method, "partition": c.partition, "data": c.cell.settings.data,
                 "epochs": c.cell.settings.epochs, "paper": c.cell.row.mean, "ours": c.acc, "stages": dict(c.stages),
                 "run": str(c.run.path)}
                | {key: c.run.summary[key] for key in ("global_acc", "failed")}
                for c in self.curves
            ],
            "missing": dict(self.missing),
            "looked": [c.results.record() for c in self.curves if self.preset.diagnostics],
            "assumptions": self.notes,
        })  # fmt: skip

    def show(self, console: Console) -> None:
        say = partial(console.print, markup=False)
        say(f"{self.preset.name} at scale {self.scale}, seed {self.seed}: {self.preset.shows}")
        for label, curve in zip(self.labels, self.curves, strict=True):
            failed = curve.run.summary["failed"]
            ours = "no global model" if curve.acc is None and not failed else percent(curve.acc)
            say(f"  {label}: {ours}{self.printed(curve)}{f' (failed: {failed})' if failed else ''}")
            if stages := ", ".join(f"{name} {100 * acc:.1f}" for name, acc in curve.stages.items()):
                say(f"    personal after {stages}")
            for finding in curve.results.findings:
                text = ", ".join(f"{k} {v:.3g}" for k, v in finding.summary.items() if isinstance(v, float))
                say(f"    {finding.name}: {text}")
            for name, why in {**curve.results.skipped, **curve.results.failed}.items():
                say(f"    {name}: not drawn, {why}")
        for label, why in self.missing.items():
            say(f"  {label}: not run, {why}")
        say(f"ours: {', '.join(f'{key}={value}' for key, value in self.ran.items())}")
        for text in self.notes:
            say(f"assumed: {text}")
        say(f"figures and numbers in {self.folder}")

    def printed(self, curve: Curve) -> str:
        """The number that the paper prints with the figure, marked where ours comes of another setting."""
        if curve.cell.row.mean is None:
            return ""
        mark = "" if comparable(self.scale, self.changes) else " (in another setting: not comparable)"
        return f", paper {percent(curve.cell.row.mean)}{mark}"


def percent(value: float | None) -> str:
    return "no accuracy" if value is None else f"{value:.2f} %"


def reproduce_figure(
    preset: Preset,
    rows: str | None,
    scale: str,
    changes: Mapping[str, Any],
    seeds: Sequence[int] | None,
    out: Path,
    options: Options,
    command: str,
) -> FigureResult:
    """Train the figure's runs, look at them, draw them together; finished runs in `out` are taken as they are."""
    if seeds and len(seeds) > 1:
        raise ConfigError(f"seeds={','.join(map(str, seeds))}: a figure shows one run of each kind; give one seed")
    cells = preset.cells(scale, changes, rows)
    seed = (seeds or PROTOCOLS[preset.paper].seeds)[0]
    folder = out / preset.name.partition("/")[2]
    for place in (out, out / "runs", folder):  # before anything starts
        check_writable(place)
    watch = tuple(name for name in WATCHED if name in preset.watch or name in options.watch)
    watching = replace(options, watch=watch)
    makers: dict[str, Callable[[Settings], Task]] = {}
    refused: dict[str, str] = {}  # by data set
    missing: dict[str, str] = {}
    curves: list[Curve] = []
    for number, cell in enumerate(cells, 1):
        data, label = cell.settings.data, f"{cell.row.method}, {cell.row.partition}, {cell.row.dataset}"
        options.progress.say(f"training {number} of {len(cells)}: {cell.training}, {cell.settings.partition}")
        place = out / "runs" / "-".join((trainings.folder_of(cell), *watch))
        make = makers.setdefault(data, same_data(options))
        try:
            if data in refused:
                raise DataError(refused[data])
            ((run, task),) = trainings.train(cell, [seed], place, watching, make)
        except DataError as error:
            refused[data] = missing[label] = str(error)
        except PartitionError as error:
            missing[label] = str(error)
        else:
            curves.append(curve_of(preset, cell, run, task, folder, options))
    if not curves:
        raise DataError(next(iter(missing.values())))
    prepare_folder(folder)
    panels = joint.over_rounds(curves)
    joint.finding_of("curves", f"{preset.name}: accuracy over rounds", preset.shows, panels).save(folder)
    if preset.joint:
        joint.finding_of("joint", preset.name, preset.shows, joint.JOINTS[preset.joint](curves)).save(folder)
    ran = common([curve.cell.settings for curve in curves])
    made = FigureResult(preset, scale, command, folder, seed, ran, tuple(curves), missing, dict(changes))
    write_atomic(folder / "figure.json", json.dumps(made.record(), indent=1, allow_nan=False) + "\n")
    return made


def curve_of(preset: Preset, cell: Cell, run: Run, task: Task, folder: Path, options: Options) -> Curve:
    """A run with its figures; a run that failed is text by what is left of it."""
    stages, acc = {}, None
    try:
        acc = trainings.read(cell, run, task, options.workers)
        if cell.personalisation:
            stages = trainings.personalised(run, task, cell.personalisation, options.workers)["personal"]["stages"]
    except HeadwayError:  # models that are not made of numbers
        if not run.summary["failed"]:
            raise
    bare = Curve(cell, run, Results(run.path, folder), None if acc is None else 100 * acc, stages)
    if not preset.diagnostics:
        return bare
    where = folder / slug("-".join((bare.method, bare.partition, bare.data, bare.epochs)))
    prepare_folder(where)
    return replace(bare, results=diagnose_all(run, task, preset.diagnostics, where, options.progress.say))


def diagnose_all(run: Run, task: Task, names: Sequence[str], folder: Path, say: Callable[[str], None]) -> Results:
    """The diagnostics one by one: what cannot be seen in a failed run does not lose the rest, nor the other runs."""
    results, failed = Results(run.path, folder), run.summary["failed"]
    try:
        subject = Subject.of(run.path, say, task)
    except CheckpointError as error:
        subject = Subject(without_models(run, task), say=say)
        results.failed |= {name: str(error) for name in names if name not in WITHOUT_MODEL}
    for name in names:
        if name in results.failed:
            forget(folder, name)
            continue
        try:
            one = diagnose(subject, [name], folder, lambda done, name: say(name) if name else None)
        except (RuntimeError, ValueError) as error:  # of numbers that are none
            if not failed:
                raise
            results.failed[name] = f"the run failed: {failed} ({error})"
            forget(folder, name)
            continue
        results.findings += one.findings
        results.skipped |= one.skipped
        results.failed |= one.failed
    return results


def without_models(run: Run, task: Task) -> Saved:
    """A run as far as its data and its tables go."""
    recipe = recorded_recipe(run.path, run.config)
    return Saved(run, recipe, task.for_recipe(recipe), Server(0, Tree(), Tree(), {}), LocalEngine(ClientStore()))
