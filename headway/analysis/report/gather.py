"""Runs on disk -> what the page compares: every run read and checked once, seeds of one recipe put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.analysis.report.steps import SILENT, Steps
from headway.analysis.report.svg import shortened
from headway.base.errors import CheckpointError, ConfigError, HeadwayError
from headway.base.wording import resume_call
from headway.data.partitions.packed import counts_in
from headway.methods import recorded_plugins
from headway.metrics.accuracy import curve_figures
from headway.runs import search as found_runs
from headway.runs.directory import check_config, read_json
from headway.runs.figures import FIGURES
from headway.runs.run import Run
from headway.training.settings import Settings

NUMBERS = ("global_acc", "personal_acc", "bytes_up", "bytes_down")
IN_A_NAME = 3  # settings that stand in a name, where so few set it apart
TRAINING = ("lr", "lr_decay", "momentum", "weight_decay", "clip_norm", "epochs", "batch_size")
Figure = Callable[[dict[str, Any]], float | None]


def worst_client(summary: dict[str, Any]) -> float | None:
    """The accuracy of the client whose own model serves it least."""
    return min((summary["personal"] or {}).get("per_client", {}).values(), default=None)


SHOWN: dict[str, Figure] = {
    **{name: FIGURES[name] for name in ("global", "last5", "best", "personal", "pooled", "megabytes", "seconds")},
    "worst": worst_client,
}


@dataclass(frozen=True)
class Held:
    """What the clients of a run hold."""

    spec: str
    hash: str
    counts: npt.NDArray[np.int64]  # [K, C]
    names: Sequence[str] = ()  # of the classes; runs of an earlier version have none

    def name(self, c: int) -> str:
        """What a class is called: its name where the run has one, shortened, else its number."""
        return shortened(self.names[c], 24) if c < len(self.names) and self.names[c].strip() else str(c)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self.counts.sum(axis=1)  # [K]

    @property
    def classes(self) -> npt.NDArray[np.int64]:
        """How many classes each client has samples of, [K]."""
        return (self.counts > 0).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Entry:
    """One run, read."""

    path: Path
    recipe: str
    label: str
    seed: int
    config: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    times: Mapping[int, float]  # seconds of each round
    summary: Mapping[str, Any] | None  # None: unfinished
    held: Held | None

    @property
    def failed(self) -> str | None:
        """Why the run counts as failed."""
        return str(self.summary["failed"]) if self.summary and self.summary["failed"] else None

    @property
    def unfinished(self) -> bool:
        return self.summary is None

    @property
    def wanted(self) -> int:
        """Rounds that were asked for."""
        return int(self.config["settings"].get("rounds") or 0)

    @property
    def done(self) -> int:
        return int(self.rows[-1]["round"]) if self.rows else 0

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """The leaderboard's figures; of an unfinished run those that its rounds so far give."""
        if self.summary is not None:
            return {name: finite(figure(dict(self.summary))) for name, figure in SHOWN.items()}
        so_far = curve_figures([dict(r) for r in self.rows])
        traffic = sum((finite(r.get(f"bytes_{way}")) or 0.0) for r in self.rows for way in ("up", "down"))
        known = {"global": so_far["last"], "last5": so_far["last5"], "best": so_far["best"]}
        known |= {"megabytes": traffic / 1e6, "seconds": sum(self.times.values())}
        return dict.fromkeys(SHOWN) | known

    @cached_property
    def calibrated(self) -> float | None:
        """The global accuracy after the calibration that follows the last round, where there was one."""
        found = (self.summary or {}).get("calibrated")
        return finite(found.get("after")) if isinstance(found, Mapping) else None

    @cached_property
    def clients(self) -> dict[int, float]:
        """Personal accuracy of each client at the end."""
        own = (self.summary or {}).get("personal") or {}
        found = {int(k): finite(v) for k, v in own.get("per_client", {}).items()}
        return {k: v for k, v in found.items() if v is not None}


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one recipe under one set of settings: they differ in their seed alone."""

    label: str
    recipe: str
    runs: tuple[Entry, ...]  # by seed
    key: str = ""  # r0, r1, ... in the order of the leaderboard
    base: bool = False  # what the others are measured against

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def settings(self) -> Mapping[str, Any]:
        return dict(self.runs[0].config["settings"])

    @property
    def counted(self) -> list[Entry]:
        """The runs whose figures stand in the leaderboard: the finished ones, where there are any."""
        return [r for r in self.runs if not r.unfinished] or list(self.runs)

    @property
    def whole(self) -> bool:
        return not any(run.unfinished for run in self.runs)

    def values(self, figure: str) -> dict[int, float]:
        """seed -> value, where there is one."""
        found = {run.seed: run.figures[figure] for run in self.counted}
        return {seed: v for seed, v in found.items() if v is not None}

    def mean(self, figure: str) -> float | None:
        known = list(self.values(figure).values())
        return sum(known) / len(known) if known else None

    def std(self, figure: str) -> float | None:
        """Spread over seeds (ddof=0), where there are several."""
        known = list(self.values(figure).values())
        return float(np.std(known)) if len(known) > 1 else None

    @property
    def calibrated(self) -> float | None:
        """Mean over seeds of the accuracy after calibration."""
        known = [run.calibrated for run in self.counted if run.calibrated is not None]
        return sum(known) / len(known) if known else None

    def clients(self) -> dict[tuple[int, int], float]:
        """(seed, client) -> personal accuracy; under another seed a client holds other data."""
        return {(run.seed, k): acc for run in self.counted for k, acc in run.clients.items()}


@dataclass(frozen=True)
class Gathered:
    """All that a page shows, in the order of the leaderboard."""

    groups: tuple[Group, ...]
    differing: dict[str, list[str]] = field(default_factory=dict)  # setting -> its value in each group
    damaged: Mapping[Path, str] = field(default_factory=dict)  # runs that cannot be read, and why

    @property
    def base(self) -> Group:
        return next(g for g in self.groups if g.base)

    @property
    def local(self) -> Group | None:
        """Training without a federation, where it is among the runs."""
        return next((g for g in self.groups if g.recipe == "local"), None)

    @property
    def runs(self) -> list[Entry]:
        return [run for g in self.groups for run in g.runs]


def gather(paths: Sequence[Path], steps: Steps = SILENT) -> Gathered:
    """The runs in these folders, grouped and in order."""
    found = list(dict.fromkeys(folder for path in paths for folder in run_folders(path)))
    unique = {folder.resolve(): folder for folder in reversed(found)}  # a folder named twice is one run
    folders = [folder for folder in found if unique[folder.resolve()] == folder]
    runs: list[Entry] = []
    damaged: dict[Path, str] = {}
    steps.begin("reading", len(folders))
    for done, folder in enumerate(folders):
        steps.at(done, str(folder))
        found_run = read_or_why(folder)
        if isinstance(found_run, Entry):
            runs.append(found_run)
        else:
            damaged[folder] = found_run
    steps.at(len(folders), "")
    if not runs:
        raise CheckpointError(next(iter(damaged.values())))
    for folder, why in damaged.items():
        steps.note(f"{folder}: left out of the page ({why})")
    groups = ranked(grouped(runs))
    return Gathered(tuple(groups), differences(groups), damaged)


def read_or_why(path: Path) -> Entry | str:
    """A run, or what is wrong with it: the page of the others is made without it."""
    try:
        entry = read(path)
        seen = found_runs.look(path, str(path))  # what the list of runs calls damaged is so here
        return seen.reason or "its files are not a run's" if seen.state == "damaged" else entry
    except HeadwayError as error:
        return str(error)
    except found_runs.UNREADABLE as error:
        return f"{path}: its files are not a run's ({type(error).__name__})"


def run_folders(path: Path) -> list[Path]:
    """The run itself, or the runs that a folder holds."""
    if (path / "config.json").exists():
        return [path]
    if not path.is_dir():
        raise CheckpointError(f"run={path}: there is no such folder; give the folder of a run or of a comparison")
    found = [folder for folder in found_runs.run_folders(path) if (folder / "config.json").exists()]
    if not found:
        raise CheckpointError(f"run={path}: no run is in this folder; give the folder of a run or of a comparison")
    return found


def read(path: Path) -> Entry:
    """One run; whatever is damaged is said in a sentence that names the file."""
    run = Run(path)
    config = run.config
    check_config(config, path)
    with suppress(HeadwayError):  # a recipe with a piece that is gone is shown without its hooks
        recorded_plugins.restore(config.get("plugins"), path)
    rows = [row for row in run.metrics if _is_row(row, path / "metrics.jsonl")]
    summary = run.summary if run.done else None
    if not rows and summary is None:
        raise CheckpointError(
            f"run={path}: it has not ended a single round, so there is nothing to show; "
            f"{resume_call(path)} first, or leave it out"
        )
    times = {
        int(t["round"]): finite(t.get("seconds")) or 0.0 for t in run.timings if _is_row(t, path / "timings.jsonl")
    }
    seed = config["settings"].get("seed")
    label = config.get("label")
    entry = Entry(
        path, config["recipe"], label if isinstance(label, str) else config["recipe"],
        seed if isinstance(seed, int) else 0, config, rows, times, summary, _held(path / "partition.json"),
    )  # fmt: skip
    try:
        _ = entry.figures, entry.clients, entry.wanted
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        where = path / ("summary.json" if summary is not None else "metrics.jsonl")
        raise CheckpointError(f"{where} is damaged ({error}); make the run again in another folder") from None
    return entry


def _is_row(row: Any, path: Path) -> bool:
    good = isinstance(row, dict) and isinstance(row.get("round"), int)
    numbers = good and all(isinstance(row.get(name), int | float | None) for name in NUMBERS)
    if not numbers:
        raise CheckpointError(f"{path} is damaged: a line is not a round's; make the run again in another folder")
    return True


def _held(path: Path) -> Held | None:
    """Who holds what; a run without the file is shown without it."""
    if not path.exists():
        return None
    found = read_json(path)
    try:
        counts = counts_in(found)
        if counts.ndim != 2 or (counts < 0).any():
            raise ValueError("counts")
        return Held(
            str(found["spec"]), str(found["hash"]), counts, [str(name) for name in found.get("class_names", ())]
        )
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(
            f"{path} is damaged: it lacks who holds what; make the run again in another folder"
        ) from None


def finite(value: Any) -> float | None:
    """A number that can be drawn, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def grouped(runs: Sequence[Entry]) -> list[Group]:
    """Runs alike but for their seed stand together; the same seed twice opens a group of its own."""
    piles: dict[tuple[Any, ...], list[Entry]] = {}
    for run in runs:
        alike = tuple(
            (k, str(v)) for k, v in sorted(run.config["identity"].items()) if k not in ("seed", "partition_hash")
        )
        turn = next(t for t in range(len(runs)) if run.seed not in {r.seed for r in piles.get((alike, t), [])})
        piles.setdefault((alike, turn), []).append(run)
    return [Group(p[0].label, p[0].recipe, tuple(sorted(p, key=lambda r: r.seed))) for p in piles.values()]


def ranked(groups: Sequence[Group]) -> list[Group]:
    """By the global accuracy of the last round, those without one last; names that repeat get what sets them apart."""
    order = sorted(groups, key=lambda g: (g.mean("global") is None, -(g.mean("global") or 0.0), g.label, g.recipe))
    base = next((i for i, g in enumerate(order) if g.recipe == "fedavg"), 0)
    taken: set[str] = set()
    named = []
    for i, g in enumerate(order):
        twins = [h for h in order if h.label == g.label and h is not g]
        known = [f"{k}={v}" for k, v in set_apart(g.settings, [h.settings for h in twins]).items()]
        label = g.label + (f" [{', '.join(known)}]" if known else "")
        turn = 2
        while label in taken:
            label = f"{label.removesuffix(f' #{turn - 1}')} #{turn}"
            turn += 1
        taken.add(label)
        named.append(Group(label, g.recipe, g.runs, f"r{i}", i == base))
    return named


def set_apart(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that tell a run from all others of its name: as few as do, then more while there is room.

    Those in which it differs from most others come first; of equals how it trains, which is why runs of one task fail.
    """
    differs = {k: {i for i, other in enumerate(others) if other.get(k) != v} for k, v in own.items() if v is not None}
    names = [k for k in differs if k != "seed" and differs[k]]
    order = sorted(names, key=lambda k: (-len(differs[k]), k not in TRAINING))
    chosen: list[str] = []
    alike = set().union(*(differs[k] for k in order))
    while alike:
        chosen.append(max(order, key=lambda k: len(differs[k] & alike)))
        alike -= differs[chosen[-1]]
    chosen += [k for k in order if k not in chosen][: max(0, IN_A_NAME - len(chosen))]
    return {k: v for k, v in own.items() if k in chosen}


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """The settings in which groups differ, though a fair comparison shares them; the seed is no setting here."""
    names = [*Settings.model_fields, *(k for g in groups for k in g.settings if k not in Settings.model_fields)]
    found = {}
    for name in dict.fromkeys(names):
        values = [
            str(g.settings.get(name, Settings.model_fields[name].default if name in Settings.model_fields else None))
            for g in groups
        ]
        if name != "seed" and len(set(values)) > 1:
            found[name] = values
    data = [str(g.runs[0].config["identity"].get("data_hash")) for g in groups]
    if len(set(data)) > 1 and "data" not in found:
        found["data_hash"] = [d[:12] for d in data]
    return found


def run_paths(paths: Sequence[str]) -> list[Path]:
    """The folders a user named, none of them empty text."""
    if not paths:
        raise ConfigError("run: none was given; give the folder of a run or of a comparison, such as runs/demo")
    for text in paths:
        if not str(text).strip():
            raise ConfigError(f"run={text!r}: it is empty; give the folder of a run, such as runs/mine")
    return [Path(text) for text in paths]
