"""A figure made again: its runs, the diagnostics of each, and their curves in one picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.comparison import same_data, slug
from headway.diagnostics.finding import Finding
from headway.diagnostics.looking import Looked, look
from headway.diagnostics.subject import Subject
from headway.experiment import Options
from headway.reproduce import work
from headway.reproduce.figures import Preset
from headway.reproduce.protocols import PROTOCOLS
from headway.rundir import Run, prepare_folder
from headway.values import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Curve:
    """One run of a figure."""

    method: str
    partition: str
    run: Run
    stages: Mapping[str, float]  # personal accuracy after every stage, where the method has stages

    @property
    def label(self) -> str:
        return f"{self.method}, {self.partition}"


@dataclass(frozen=True)
class Made:
    """What came of a figure."""

    preset: Preset
    scale: str
    command: str
    folder: Path
    curves: tuple[Curve, ...]
    looked: tuple[Looked, ...]

    def record(self) -> dict[str, Any]:
        return {
            "name": self.preset.name,
            "shows": self.preset.shows,
            "scale": self.scale,
            "command": self.command,
            "folder": str(self.folder),
            "runs": [
                {"method": c.method, "partition": c.partition, "stages": dict(c.stages), "run": str(c.run.path)}
                | {key: c.run.summary[key] for key in ("global_acc", "failed")}
                for c in self.curves
            ],
            "looked": [looked.record() for looked in self.looked],
            "assumptions": list(PROTOCOLS[self.preset.paper].assumptions),
        }  # fmt: skip

    def show(self, console: Console) -> None:
        say = partial(console.print, markup=False)
        say(f"{self.preset.name} at scale {self.scale}: {self.preset.shows}")
        for curve in self.curves:
            acc, failed = curve.run.summary["global_acc"], curve.run.summary["failed"]
            figure = "no global model" if acc is None else f"global {100 * acc:.2f} %"
            stages = ", ".join(f"{name} {100 * acc:.1f}" for name, acc in curve.stages.items())
            say(f"  {curve.label}: {figure}{f' (failed: {failed})' if failed else ''}")
            if stages:
                say(f"    personal after {stages}")
        for looked in self.looked:
            for finding in looked.findings:
                told = ", ".join(f"{k} {v:.3g}" for k, v in finding.summary.items() if isinstance(v, float))
                say(f"  {looked.folder.name} {finding.name}: {told}")
            for name, why in {**looked.skipped, **looked.failed}.items():
                say(f"  {looked.folder.name} {name}: not drawn, {why}")
        for text in PROTOCOLS[self.preset.paper].assumptions:
            say(f"assumed: {text}")
        say(f"figures and numbers in {self.folder}")


def reproduce_figure(
    preset: Preset,
    scale: str,
    changes: Mapping[str, Any],
    seeds: Sequence[int] | None,
    out: Path,
    options: Options,
    command: str,
) -> Made:
    """Train the figure's runs, look at them, draw them together; finished runs in `out` are taken as they are."""
    cells = preset.cells(scale, dict(changes))
    seed = (seeds or PROTOCOLS[preset.paper].seeds)[:1]  # a figure shows one run of each
    folder = out / preset.name.partition("/")[2]
    prepare_folder(folder)
    make = same_data(options)
    watching = replace(options, watch=preset.watch)
    curves, looked = [], []
    for number, cell in enumerate(cells, 1):
        options.progress.say(f"training {number} of {len(cells)}: {cell.training}, {cell.settings.partition}")
        watched = f"-{'-'.join(preset.watch)}" if preset.watch else ""
        place = out / "runs" / f"{work.folder_of(cell)}{watched}"
        (run, task) = work.train(cell, seed, place, watching, make)[0]
        after = work.personalised(run, task, cell.personalisation) if cell.personalisation else None
        curves.append(Curve(cell.row.method, cell.row.partition, run, after["personal"]["stages"] if after else {}))
        if preset.diagnostics:
            where = folder / slug(curves[-1].label.replace(", ", "-"))
            prepare_folder(where)
            subject = Subject.of(run.path, options.progress.say, task)
            looked.append(look(subject, preset.diagnostics, where, lambda done, name: options.progress.say(name)))
    together(preset, curves).save(folder)
    made = Made(preset, scale, command, folder, tuple(curves), tuple(looked))
    write_atomic(folder / "figure.json", json.dumps(made.record(), indent=1) + "\n")
    return made


def together(preset: Preset, curves: Sequence[Curve]) -> Finding:
    """The learning curves of all runs of a figure."""
    rows = [
        {"method": c.method, "partition": c.partition, "round": row["round"], "global_acc": row["global_acc"],
         "pooled_local_acc": row["pooled_local_acc"]}
        for c in curves for row in c.run.metrics
    ]  # fmt: skip
    last = {c.label: c.run.summary["global_acc"] for c in curves}
    return Finding(
        "curves", f"{preset.name}: accuracy over rounds", preset.shows, last, {"rounds": rows},
        f"Accuracy over rounds of {', '.join(c.label for c in curves)}.", partial(draw_curves, preset, curves),
    )  # fmt: skip


def draw_curves(preset: Preset, curves: Sequence[Curve]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    methods, partitions = (list(dict.fromkeys(getattr(c, name) for c in curves)) for name in ("method", "partition"))
    for curve in curves:
        name = "pooled_local_acc" if curve.run.summary["global_acc"] is None else "global_acc"
        points = [(row["round"], 100 * row[name]) for row in curve.run.metrics if row[name] is not None]
        colour, style = f"C{methods.index(curve.method) % 10}", STYLES[partitions.index(curve.partition) % len(STYLES)]
        label = curve.label if name == "global_acc" else f"{curve.label} (clients' own models)"
        axes.plot(*zip(*points, strict=True), style, color=colour, label=label, linewidth=1.4)
    axes.set(xlabel="round", ylabel="test accuracy, %", title=preset.name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure
