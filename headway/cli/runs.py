"""`headway runs`: runs listed, filtered, sorted, compared, and as CSV."""

from __future__ import annotations

import csv as tables
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from headway.base.csv_table import csv_text, safe_cell
from headway.base.errors import CheckpointError, ConfigError
from headway.base.serialise import write_atomic
from headway.base.text import counted, slug
from headway.cli import completion
from headway.cli.help import Argument, declare
from headway.cli.options import flag, json_output, overwrite, repeated, text
from headway.cli.output import emit, percent, plain_table
from headway.runs import directory, search

TITLES = {
    "global": "global %", "personal": "personal %", "balanced": "balanced %", "last5": "last 5 %", "best": "best %",
    "pooled": "pooled %", "personal_std": "± %", "megabytes": "MB", "seconds": "s",
}  # fmt: skip

LIST, METRICS = ["run", "state", "recipe"], ["run", "recipe", "seed", "round"]  # how files of headway begin
FOLDERS = Argument(
    "folders", nargs=-1, metavar="[DIR]...", about="folders that hold runs, or runs [runs]",
    shell_complete=completion.folders,
)  # fmt: skip
OPTIONS = [
    repeated(
        "where", "recipe=fed*, lr=0.05, global>90 (%, or 0.9), state=failed; may be repeated", metavar="KEY=VALUE"
    ),
    text("--sort", about="a figure or setting; accuracies best first, - in front reverses the order"),
    text("--columns", about="what to show, such as run,recipe,lr,global"),
    flag("--diff", about="the settings in which runs differ and their figures: --diff A B"),
    flag("--metrics", about="every round of the runs, as CSV on stdout or to --csv"),
    text("--csv", metavar="FILE", about="write a CSV file; with --metrics a folder/ gets one a run"),
    overwrite("a CSV file that headway did not write"),
    json_output("print JSON"),
]


@declare("runs", FOLDERS, *OPTIONS)
def command(
    folders: tuple[str, ...], where: tuple[str, ...], sort: str | None, columns: str | None, diff: bool, metrics: bool,
    csv: str | None, overwrite: bool, as_json: bool,
) -> None:  # fmt: skip
    """List runs, filter and sort them, show how they differ."""
    for name, given in (("sort", sort), ("columns", columns), ("csv", csv)):
        if given is not None and not given.strip():
            raise ConfigError(f"{name}={given!r}: it is empty; give a value, or leave --{name} out")
    if diff and metrics:
        raise ConfigError("diff, metrics: they show different things; give one of the two")
    shown = search.columns_of(columns)
    place = csv_place(csv, several=metrics)
    paths = [Path(p) for p in folders or ("runs",)]
    found = search.chosen(search.find(named_runs(paths) if diff else paths), list(where))
    found = search.in_order(found, sort) if sort or not diff else as_named(found, named_runs(paths))
    if diff:
        table = search.difference(found)
        header = headings(["what", *table["runs"]])
        rows = [dict(zip(header, [key, *values], strict=True))
                for part in ("settings", "figures") for key, values in table[part].items()]  # fmt: skip
        save(place, rows, overwrite)
        emit(as_json, table, lambda c: print_difference(c, table, place))
    elif metrics:
        found = readable(found)
        rows = search.metrics_rows(found)
        if place and place.is_dir():
            taken: list[str] = []
            for f in found:
                taken.append(file_name(f.name, taken))
            for name in taken:  # all before any: nothing is half-written
                check_own(place / f"{name}.csv", METRICS, overwrite)
            for f, name in zip(found, taken, strict=True):
                save(place / f"{name}.csv", search.metrics_rows([f]), overwrite)
        else:
            save(place, rows, overwrite)
        emit(as_json, rows, lambda c: print_metrics(c, rows, place))
    else:
        save(place, [{key: f[key] for key in listed(shown)} for f in found], overwrite)
        emit(as_json, [f.record() for f in found], lambda c: print_runs(c, found, shown, place))


def readable(found: Sequence[search.Found]) -> list[search.Found]:
    """The runs whose rounds can be read; for the others the reason is printed."""
    damaged = [f for f in found if f.state == "damaged"]
    if damaged and len(damaged) == len(found):
        raise CheckpointError(str(damaged[0].reason))
    for f in damaged:
        print(f"note: {f.name} is left out: {f.reason}", file=sys.stderr)
    return [f for f in found if f not in damaged]


def named_runs(given: Sequence[Path]) -> list[Path]:
    """What --diff compares: folders as they stand, or names as a list of runs/ or of the first folder shows them."""
    first, rest = (given[0], given[1:]) if given else (Path("runs"), [])
    holds = any((first / p).is_dir() for p in rest)
    if holds and not (first / "config.json").exists():
        return [first / p if (first / p).is_dir() else p for p in rest]
    return [p if p.is_dir() or not (Path("runs") / p).is_dir() else Path("runs") / p for p in given]


def as_named(found: Sequence[search.Found], named: Sequence[Path]) -> list[search.Found]:
    """In the order the user gave, not in that of the clock."""
    order = [p.resolve() for p in named]

    def place(f: search.Found) -> int:
        return next((i for i, p in enumerate(order) if f.path.resolve().is_relative_to(p)), len(order))

    return sorted(found, key=place)


def csv_place(text: str | None, several: bool) -> Path | None:
    """Where the CSV goes: never over a run's own file."""
    if text is None:
        return None
    place, asked = Path(text), (f"csv={text}", "choose another --csv")
    if several and (text.endswith("/") or place.is_dir()):
        directory.prepare_folder(place, *asked)
        return place
    if place.suffix.lower() != ".csv":
        raise ConfigError(f"csv={text}: the file must end in .csv, such as {place.with_suffix('.csv').name}")
    if place.is_dir() or not place.parent.is_dir():
        raise CheckpointError(f"csv={text}: it cannot be written there; give a file in a folder that exists")
    directory.check_writable(place.parent, *asked)
    return place


def save(place: Path | None, rows: Sequence[dict[str, Any]], overwrite: bool) -> None:
    if place:
        named = [{safe_cell(str(k)): v for k, v in row.items()} for row in rows]
        check_own(place, list(named[0]) if named else [], overwrite)
        write_atomic(place, csv_text(named))


def check_own(place: Path, header: Sequence[str], overwrite: bool) -> None:
    """A list of headway, known by its first line, or an empty file may be replaced; anything else when asked to."""
    if overwrite or not place.exists() or not place.stat().st_size:
        return
    try:
        with open(place, newline="", encoding="utf-8") as f:
            there = next(tables.reader(f), [])
    except (OSError, ValueError, tables.Error):
        there = []
    starts = any(there[: len(first)] == first for first in (LIST, METRICS))
    if not starts and there != list(header):
        raise CheckpointError(
            f"csv={place}: it is there already and headway did not write it; choose another file, or --overwrite to "
            f"replace it"
        )


def headings(names: Sequence[str]) -> list[str]:
    """Names that a CSV file can have beside each other: safe for spreadsheets, and each once."""
    taken: list[str] = []
    for name in map(safe_cell, names):
        taken.append(next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(names) + 2))) if n not in taken))
    return taken


def file_name(name: str, taken: Sequence[str]) -> str:
    """A run's name as that of a file; a/b and a-b do not share one."""
    plain = slug(name.replace("/", "-"))
    return next(n for n in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)


def listed(shown: Sequence[str]) -> list[str]:
    """The columns of the CSV: rounds done stand beside the rounds asked for."""
    return [key for column in shown for key in ((column, "rounds_done") if column == "rounds" else (column,))]


# ---- for people
def clean(value: Any) -> str:
    """Text that prints as it is: neither markup nor control characters of a hostile name come through."""
    return escape("".join(c if c.isprintable() else "?" for c in str(value)))


def cell(f: search.Found, key: str) -> str:
    value = f[key]
    if key == "rounds":
        return f"{f['rounds_done']}/{clean(value)}" if value is not None else "-"
    if value is None:
        return "-"
    if TITLES.get(key, "").endswith("%"):
        return percent(value)
    if key in ("megabytes", "seconds"):
        return f"{value:.1f}"
    return clean(str(value)[:16].replace("T", " ")) if key == "started" else clean(value)


def that_fit(cells: dict[str, list[str]], width: int) -> list[str]:
    """The columns that fit the terminal's width, the least needed left out first; a run's name is never cut."""
    needed = {key: 3 + max(map(len, [TITLES.get(key, key), *column])) for key, column in cells.items()}
    kept = list(cells)
    for key in ("started", "megabytes", "seconds", "data", "partition", "state", "rounds", "recipe"):
        if sum(needed[k] for k in kept) <= width:
            break
        kept.remove(key)
    return kept


def print_runs(console: Console, found: Sequence[search.Found], shown: Sequence[str], place: Path | None) -> None:
    if found:
        cells = {key: [cell(f, key) for f in found] for key in shown}
        usual = console.is_terminal and tuple(shown) == search.COLUMNS  # a pipe gets all of them
        fitting = that_fit(cells, console.width) if usual else list(shown)
        table = plain_table(*(TITLES.get(key, key) for key in fitting))
        for column, key in zip(table.columns, fitting, strict=True):
            column.justify = "right" if key in TITLES or key == "rounds" else "left"
            column.no_wrap, column.overflow = key == "run", "fold"
        for row in zip(*(cells[key] for key in fitting), strict=True):
            table.add_row(*row)
        console.print(table)
        if left := [key for key in shown if key not in fitting]:
            console.print(f"left out, as the terminal is too narrow: {', '.join(left)}; choose with --columns")
    for f in found:
        if f.reason:
            console.print(f"{f.state}: {clean(f.name)}: {clean(f.reason)}")
    console.print(search.count_by_state(found) + (f" -> {clean(place)}" if place else ""))


def print_difference(console: Console, table: dict[str, Any], place: Path | None) -> None:
    lines = plain_table("", *map(clean, table["runs"]))
    for key, values in table["settings"].items():
        lines.add_row(key, *("-" if v is None else clean(v) for v in values))
    if not table["settings"]:
        lines.add_row("settings", *["the same"] * len(table["runs"]))
    lines.add_section()
    for key, values in table["figures"].items():
        shares = TITLES.get(key, "").endswith("%")
        shown = [percent(v) if shares else f"{v:.1f}" if isinstance(v, float) else v for v in values]
        lines.add_row(
            TITLES.get(key, key), *("-" if v is None else clean(t) for v, t in zip(values, shown, strict=True))
        )
    console.print(lines)
    if place:
        console.print(f"-> {clean(place)}")


def print_metrics(console: Console, rows: Sequence[dict[str, Any]], place: Path | None) -> None:
    if place:
        rounds, runs = counted(len(rows), "round"), counted(len({r["run"] for r in rows}), "run")
        console.print(f"{rounds} of {runs} -> {clean(place)}")
    else:
        console.out(csv_text(rows).rstrip("\n"), highlight=False)
