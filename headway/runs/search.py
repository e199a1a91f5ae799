"""The runs under a folder: their state and figures, filters, order, and how some of them differ."""

from __future__ import annotations

import fnmatch
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, ConfigError, HeadwayError, nearest
from headway.base.text import counted
from headway.runs.directory import OWN_FOLDERS, check_config
from headway.runs.figures import FIGURES
from headway.runs.lock import is_running
from headway.runs.run import Run
from headway.runs.tracking import SHARED_FOLDERS
from headway.training.settings import Settings

TRACES = ("config.json", "metrics.jsonl", "summary.json")  # any of them shows that a run was here
FACTS = ("run", "state", "reason", "recipe", "pieces", "rounds_done", "started", "headway")
ALSO = {  # other names of figures and facts
    "global_acc": "global", "personal_acc": "personal", "balanced_acc": "balanced", "mb": "megabytes", "s": "seconds",
    "label": "recipe", "done": "rounds_done", "version": "headway",
}  # fmt: skip
MORE_IS_BETTER = ("global", "last5", "best", "balanced", "personal", "pooled")
SHARES = (*MORE_IS_BETTER, "personal_std")  # kept as 0.9, shown as 90 %
COLUMNS = (
    "run", "state", "recipe", "data", "partition", "rounds", "global", "personal", "megabytes", "seconds", "started",
)  # fmt: skip
UNREADABLE = (HeadwayError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Found:
    """A run directory and its state: finished, running, unfinished, failed or damaged."""

    path: Path
    name: str  # its path from the folder that was searched; the whole path where two would have one name
    state: str
    reason: str | None = None  # why it failed, or what is damaged
    values: Mapping[str, Any] = field(default_factory=dict)  # facts, figures and settings by name

    def __getitem__(self, key: str) -> Any:
        return {"run": self.name, "state": self.state, "reason": self.reason}.get(key, self.values.get(key))

    @property
    def run(self) -> Run:
        return Run(self.path)

    def record(self) -> dict[str, Any]:
        """All facts, figures and settings, for JSON."""
        record = {key: self[key] for key in (*FACTS, *FIGURES)}
        return record | {"settings": {key: self.values[key] for key in Settings.model_fields if key in self.values}}


def known_keys() -> list[str]:
    """The keys of filters, orders and columns."""
    return [*FACTS, *FIGURES, *Settings.model_fields]


def key_of(option: str, text: str) -> str:
    key = text.strip().lower().replace("-", "_")
    key = ALSO.get(key, key)
    if key not in known_keys():
        raise ConfigError(
            f"{option}={text.strip() or repr(text)}: runs have no such column; {nearest(key, known_keys())}"
        )
    return key


# ---- finding
def runs(folder: str | Path = "runs", where: str | Sequence[str] = ()) -> list[Run]:
    """The runs under a folder in the order they were started; damaged ones are left out.

    Args:
        folder: The folder, searched with all folders in it.
        where: Conditions such as `"lr=0.1"`, `"recipe=fed*"` or `"global>0.9"`; runs must meet them all.

    Returns:
        The runs.

    Raises:
        CheckpointError: There is no such folder.
        ConfigError: A condition cannot be read.

    >>> import headway
    >>> for lr in (0.05, 0.1):
    ...     run = headway.run("fedavg", lr=lr, clients=2, rounds=1, train_size=60, out=f"tried/{lr}")
    >>> [run.config["settings"]["lr"] for run in headway.runs("tried", where="lr>0.05")]
    [0.1]
    """
    wanted = [where] if isinstance(where, str) else where
    return [found.run for found in chosen(find([Path(folder)]), wanted) if found.state != "damaged"]


def find(folders: Iterable[Path]) -> list[Found]:
    """All runs under these folders, each once, by the time they were started."""
    seen: dict[Path, Found] = {}
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: there is no such folder; give the folder of your runs")
        for path in run_folders(folder):
            name = str(folder) if path == folder else str(path.relative_to(folder))
            seen.setdefault(path.resolve(), look(path, name))
    names = Counter(f.name for f in seen.values())  # two comparisons both have a fedavg/seed-0
    apart = [f if names[f.name] == 1 else replace(f, name=str(f.path)) for f in seen.values()]
    return sorted(apart, key=lambda f: (str(f["started"] or ""), f.name))


def run_folders(top: Path) -> list[Path]:
    """Folders with files of a run; folders inside a run, or of a tracker, are left out.

    A link is listed and not followed, so that a loop does no harm; links come last, after what they may point to.
    """
    found, links = [], []
    for place, folders, files in os.walk(top):
        here = any(name in files for name in TRACES)
        if here:
            found.append(Path(place))
        inside = OWN_FOLDERS if here else SHARED_FOLDERS
        folders[:] = sorted(f for f in folders if f not in inside and not f.startswith("."))
        linked = [path for f in folders if (path := Path(place) / f).is_symlink()]
        links += [path for path in linked if any(os.path.exists(path / name) for name in TRACES)]
    return found + links


def look(path: Path, name: str) -> Found:
    """The state of one run. Damaged files are a state, not an exception."""
    try:
        if not (path / "config.json").exists():
            raise CheckpointError(f"{path} has no config.json; it was lost, or the run was never begun")
        run = Run(path)
        check_config(run.config, path)
        facts = facts_of(run)
        if not run.done:
            state = "running" if is_running(path) else "unfinished"
            return Found(path, name, state, None, facts | so_far(run))
        summary, _ = run.summary, run.metrics  # a finished run has all its rounds
        figures = {key: number(figure(summary)) for key, figure in FIGURES.items()}
        failed = summary["failed"]
        values = facts | figures | {"rounds_done": summary["rounds"]}
        return Found(path, name, "failed" if failed else "finished", failed and str(failed), values)
    except UNREADABLE as error:
        why = str(error) if isinstance(error, HeadwayError) else f"its files are not a run's ({type(error).__name__})"
        return Found(path, name, "damaged", why)


def facts_of(run: Run) -> dict[str, Any]:
    config = run.config
    facts = {"recipe": str(config.get("label") or config["recipe"]), "pieces": config["recipe"]}
    facts |= {"started": config.get("started"), "headway": config.get("versions", {}).get("headway")}
    return {**config["settings"], **facts}


def so_far(run: Run) -> dict[str, Any]:
    """The figures of a run that has not ended, from its last evaluated round."""
    rows = run.metrics
    scored = next((row for row in reversed(rows) if any(row.get(k) is not None for k in SCORES.values())), {})
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    figures = dict.fromkeys(FIGURES) | {key: number(scored.get(column)) for key, column in SCORES.items()}
    seconds = sum(row["seconds"] for row in run.timings)
    return figures | {"megabytes": sent / 1e6, "seconds": round(seconds, 3), "rounds_done": len(rows)}


SCORES = {"global": "global_acc", "balanced": "balanced_acc", "personal": "personal_acc", "pooled": "pooled_local_acc"}


def number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


# ---- choosing
CONDITION = re.compile(r"\s*([A-Za-z_][\w-]*)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)
ORDERS: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def chosen(found: Iterable[Found], where: Sequence[str]) -> list[Found]:
    """Runs that meet every condition, such as `recipe=fed*`, `lr=0.05`, `global>0.9` or `state!=failed`."""
    tests = [condition(text) for text in where]
    return [f for f in found if all(test(f) for test in tests)]


def condition(text: str) -> Callable[[Found], bool]:
    parts = CONDITION.fullmatch(text)
    if not parts:
        raise ConfigError(f"where={text or repr(text)}: write key=value, such as recipe=fedavg, or global>0.9")
    key, sign, value = key_of("where", parts[1]), parts[2], parts[3]
    if sign in ORDERS:
        return ordered(key, sign, value, text)
    if key in SHARES and (limit := as_number(value)) is not None:
        value = repr(as_share(limit))
    keys = (key, "pieces") if key == "recipe" else (key,)  # a recipe by its name, or by its pieces
    return lambda f: any(alike(f[k], value) for k in keys) == (sign == "=")


def ordered(key: str, sign: str, value: str, text: str) -> Callable[[Found], bool]:
    limit = as_number(value)
    if key == "started":
        return lambda f: bool(f[key]) and ORDERS[sign]((str(f[key]) > value) - (str(f[key]) < value), 0)
    if limit is None:
        raise ConfigError(
            f"where={text}: {sign} compares numbers and {value or repr(value)} is none; "
            + (f"write {key}={value}" if value else f"give a number, such as {key}{sign}0.9")
        )
    limit = as_share(limit) if key in SHARES else limit
    return lambda f: (there := as_number(f[key])) is not None and ORDERS[sign](there, limit)


def as_share(value: float) -> float:
    """An accuracy above 1 is in percent, as the list shows it."""
    return value / 100 if value > 1 else value


def alike(there: Any, value: str) -> bool:
    """Equal as numbers, or as text with the wildcards * ? [..]; case does not matter."""
    if there is None:
        return value.lower() in ("none", "null", "n/a")
    a, b = as_number(there), as_number(value)
    if a is not None and b is not None:
        return a == b
    text, wanted = str(there).lower(), value.lower()
    return text == wanted or fnmatch.fnmatchcase(text, wanted)


def as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def in_order(found: Sequence[Found], sort: str | None) -> list[Found]:
    """Sorted by a key: accuracies with the best first, all else ascending; a leading - reverses it."""
    if sort is None:
        return list(found)
    key = key_of("sort", sort.removeprefix("-"))
    down = (key in MORE_IS_BETTER) != sort.startswith("-")
    known = [f for f in found if f[key] is not None]
    numbers = all(as_number(f[key]) is not None for f in known)
    known.sort(key=lambda f: as_number(f[key]) if numbers else str(f[key]).lower(), reverse=down)  # type: ignore[arg-type,return-value]
    return [*known, *(f for f in found if f[key] is None)]


def columns_of(text: str | None) -> list[str]:
    return list(COLUMNS) if text is None else [key_of("columns", name) for name in text.split(",")]


# ---- differences and metrics
def difference(found: Sequence[Found]) -> dict[str, Any]:
    """The settings in which runs differ, and their figures, run by run in the order given."""
    if len(found) < 2:
        raise ConfigError(f"diff: it compares two runs or more and found {len(found)}; name at least two")
    keys = ["recipe", "pieces", *Settings.model_fields, "headway"]
    values_of = {key: [f[key] for f in found] for key in keys}
    differing = {key: values for key, values in values_of.items() if any(v != values[0] for v in values)}
    if "recipe" in differing and differing.get("pieces") == differing["recipe"]:
        del differing["pieces"]
    figures = {key: [f[key] for f in found] for key in ("state", "rounds_done", *FIGURES)}
    return {"runs": [f.name for f in found], "settings": differing, "figures": figures}


def metrics_rows(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Every round of every run in long format: run, recipe, seed, then the columns of metrics.jsonl."""
    rows = []
    for f in found:
        if f.state == "damaged":
            continue
        seconds = {row.get("round"): row.get("seconds") for row in f.run.timings}
        for row in f.run.metrics:
            flat = {k: v for k, v in row.items() if not isinstance(v, dict)}
            flat |= {
                f"{k}.{name}": v for k, inner in row.items() if isinstance(inner, dict) for name, v in inner.items()
            }
            first = {"run": f.name, "recipe": f["recipe"], "seed": f["seed"]}
            rows.append(first | flat | {"seconds": seconds.get(row.get("round"))})
    columns = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key) for key in columns} for row in rows]


def count_by_state(found: Sequence[Found]) -> str:
    """`3 runs: 2 finished, 1 running`"""
    states = [f.state for f in found]
    parts = [
        f"{states.count(s)} {s}" for s in ("finished", "running", "unfinished", "failed", "damaged") if s in states
    ]
    return f"{counted(len(found), 'run')}: {', '.join(parts)}" if found else "no runs"
