"""Trackers: a run's numbers sent to TensorBoard, MLflow or W&B, round by round.

A tracker that fails is closed with one line; the training goes on, to the same bits as without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from headway.base.errors import ConfigError, nearest
from headway.runs.directory import read_json, read_table

Row = Mapping[str, Any]
SHARED = Path("runs")  # files of several runs: MLflow's local store, W&B's offline files
SHARED_FOLDERS = ("mlflow", "wandb")
EXTRAS = {"tensorboard": "track", "mlflow": "track", "wandb": "wandb"}  # a tracker, and the extra that installs it
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic"), "wandb": ("wandb",)}


class Tracker(Protocol):
    """Follows one run."""

    def begin(self, config: Mapping[str, Any]) -> int:
        """Open this run's record, or a new one; returns the last round that is in it, 0 for none."""

    def round(self, row: Row) -> None:
        """Add one round's numbers; they are saved when this returns."""

    def end(self, summary: Mapping[str, Any], done: int) -> None:
        """The run is finished."""

    def close(self) -> None:
        """Close the record; the run may be unfinished and continued later."""


class Trackers:
    """All trackers of one run. An exception in one closes it with a warning; none reaches the run."""

    def __init__(self, names: Sequence[str], out: Path):
        self.names, self.out = names, out
        self._open: dict[str, tuple[Tracker, int]] = {}  # the tracker, and the last round it had when it was opened
        self._lost: list[str] = []

    def begin(self) -> None:
        """Open all of them and send the rounds that each has not had yet."""
        for name in self.names:
            self._guard(name, self._begin)

    def round(self, row: Row) -> None:
        for name in list(self._open):
            self._guard(name, self._round, row)

    def end(self) -> None:
        """Send the figures of the finished run; a tracker that failed before is tried once more."""
        for name in self._lost:
            try:
                self._begin(name)
            except Exception:  # the warning was printed before
                self._open.pop(name, None)
        for name in list(self._open):
            self._guard(name, self._end)

    def close(self) -> None:
        for name in list(self._open):
            self._guard(name, self._close)

    def _begin(self, name: str) -> None:
        tracker: Tracker = importlib.import_module(f"headway.runs.tracking.{name}").open_tracker(self.out)
        known = tracker.begin(read_json(self.out / "config.json"))
        self._open[name] = tracker, known
        for row in rows_of(self.out):
            self._round(name, row)

    def _round(self, name: str, row: Row) -> None:
        tracker, known = self._open[name]
        if row["round"] > known:  # a round made again after a crash has the same numbers: once is enough
            tracker.round(row)

    def _end(self, name: str) -> None:
        summary = read_json(self.out / "summary.json")
        self._open[name][0].end(summary, summary["rounds"])

    def _close(self, name: str) -> None:
        self._open.pop(name)[0].close()

    def _guard(self, name: str, work: Any, *given: Any) -> None:
        try:
            work(name, *given)
        except Exception as error:
            tracker = self._open.pop(name, None)
            self._lost.append(name)
            why = " ".join(f"{type(error).__name__}: {error}".split())
            line = f"headway: warning: tracking with {name} stopped and the run goes on ({why[:300]})"
            print("".join(c if c.isprintable() else " " for c in line), file=sys.stderr)
            if tracker:
                with suppress(Exception):
                    tracker[0].close()


def names_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of trackers, each once; one that is unknown or not installed is refused."""
    words = [given] if isinstance(given, str) else list(given or ())
    names = [name.strip().lower() for word in words for name in str(word).split(",")]
    for name in names:
        if name not in EXTRAS:
            raise ConfigError(f"track={name or repr(name)}: there is no such tracker; {nearest(name, EXTRAS)}")
        if lacking := [p for p in PACKAGES[name] if not installed(p)]:
            raise ConfigError(
                f"track={name}: it needs {' and '.join(lacking)}, not installed here; "
                f"pip install 'headway[{EXTRAS[name]}]'"
            )
    return tuple(dict.fromkeys(names))


def installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def replay(out: Path, names: Sequence[str]) -> None:
    """Track a run that a worker made: its rounds and its end at once."""
    trackers = Trackers(names, out)
    trackers.begin()
    trackers.end()
    trackers.close()


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rounds so far as trackers get them: what was watched, metrics and times."""
    seen, times = ({r["round"]: r for r in read_table(out / f"{name}.jsonl")} for name in ("watch", "timings"))
    rows = read_table(out / "metrics.jsonl")
    return [seen.get(row["round"], {}) | row | times.get(row["round"], {}) for row in rows]


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """All numbers by name, nested ones as a/b; the round and other values are left out."""
    for key, value in values.items():
        name = prefix + re.sub(r"[^\w. /-]", "_", str(key))
        if isinstance(value, Mapping):
            yield from numbers(value, f"{name}/")
        elif isinstance(value, bool | int | float) and name != "round":
            yield name, float(value)


def end_figures(summary: Mapping[str, Any]) -> dict[str, float]:
    """The final figures of a run by name."""
    figures = {k: v for k, v in summary.items() if k not in ("seed", "rounds", "rounds_to")}
    if isinstance(own := figures.get("personal"), Mapping):
        figures["personal"] = {k: v for k, v in own.items() if k not in ("per_client", "stages")}
    return dict(numbers(figures, "end/"))


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Recipe and settings of a run as text."""
    return {"recipe": str(config["recipe"])} | {k: str(v) for k, v in config["settings"].items()}


class Journal:
    """A tracker's state between two processes: RUN/tracking/NAME.json, and the rounds it has in NAME.jsonl."""

    def __init__(self, out: Path, name: str):
        self.notes, self.rounds = (out / "tracking" / f"{name}.{end}" for end in ("json", "jsonl"))

    def read(self) -> tuple[dict[str, Any], int]:
        """(notes, the last round that was tracked); nothing where the files are missing or damaged."""
        try:
            notes = json.loads(self.notes.read_text())
            last = max((int(line) for line in self.rounds.read_text().split("\n")[:-1]), default=0)
        except (OSError, ValueError):
            return {}, 0
        return (notes, last) if isinstance(notes, dict) else ({}, 0)

    def start(self, notes: Mapping[str, Any]) -> None:
        self.notes.parent.mkdir(exist_ok=True)
        self.rounds.write_text("")
        self.notes.write_text(json.dumps(notes) + "\n")

    def add(self, t: int) -> None:
        with open(self.rounds, "a") as f:
            f.write(f"{t}\n")
