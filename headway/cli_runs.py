"""`headway runs`: which runs there are, filtered, sorted, compared, and as CSV."""

from __future__ import annotations

import csv as tables
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from headway.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from headway.found_runs import Found

TITLES = {
    "global": "global %", "personal": "personal %", "balanced": "balanced %", "last5": "last 5 %", "best": "best %",
    "pooled": "pooled %", "personal_std": "± %", "megabytes": "MB", "seconds": "s",
}  # fmt: skip

LIST, METRICS = ["run", "state", "recipe"], ["run", "recipe", "seed", "round"]  # how files of headway begin


def runs_command(
    folders: list[str] = typer.Argument(None, metavar="[DIR]..."),  # noqa: B008  typer's way
    where: list[str] = typer.Option(  # noqa: B008
        None, metavar="KEY=VALUE", help="recipe=fed*, lr=0.05, global>90 (%, or 0.9), state=failed; may be repeated"
    ),
    sort: str = typer.Option(None, help="a figure or setting; accuracies best first, - in front turns it round"),
    columns: str = typer.Option(None, help="what to show, such as run,recipe,lr,global"),
    diff: bool = typer.Option(False, "--diff", help="the settings in which runs differ and their figures: --diff A B"),
    metrics: bool = typer.Option(False, "--metrics", help="every round of the runs, as CSV on stdout or to --csv"),
    csv: str = typer.Option(None, metavar="FILE", help="write a CSV file; with --metrics a folder/ gets one a run"),
    overwrite: bool = typer.Option(False, "--overwrite", help="replace a CSV file that headway did not write"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """Which runs there are, and how they differ."""
    from headway import found_runs as work
    from headway.cli import emit

    for name, text in (("sort", sort), ("columns", columns), ("csv", csv)):
        if text is not None and not text.strip():
            raise ConfigError(f"{name}={text!r}: it is empty; give a value, or leave --{name} out")
    if diff and metrics:
        raise ConfigError("diff, metrics: they show different things; give one of the two")
    shown = work.columns_of(columns)
    place = csv_place(csv, several=metrics)
    given = [Path(p) for p in folders or ["runs"]]
    found = work.chosen(work.find(named_runs(given) if diff else given), where or [])
    found = work.in_order(found, sort) if sort or not diff else as_named(found, named_runs(given))
    if diff:
        table = work.difference(found)
        header = headings(["what", *table["runs"]])
        rows = [dict(zip(header, [key, *values], strict=True))
                for part in ("settings", "figures") for key, values in table[part].items()]  # fmt: skip
        save(place, rows, overwrite)
        emit(as_json, table, lambda c: print_difference(c, table, place))
    elif metrics:
        found = readable(found)
        rows = work.metrics_rows(found)
        if place and place.is_dir():
            taken: list[str] = []
            for f in found:
                taken.append(file_name(f.name, taken))
            for name in taken:  # all before any: nothing is half-written
                check_own(place / f"{name}.csv", METRICS, overwrite)
            for f, name in zip(found, taken, strict=True):
                save(place / f"{name}.csv", work.metrics_rows([f]), overwrite)
        else:
            save(place, rows, overwrite)
        emit(as_json, rows, lambda c: print_metrics(c, rows, place))
    else:
        save(place, [{key: f[key] for key in listed(shown)} for f in found], overwrite)
        emit(as_json, [f.record() for f in found], lambda c: print_runs(c, found, shown, place))


def readable(found: Sequence[Found]) -> list[Found]:
    """The runs whose rounds can be read; of the others it is told why not."""
    damaged = [f for f in found if f.state == "damaged"]
    if damaged and len(damaged) == len(found):
        raise CheckpointError(str(damaged[0].reason))
    for f in damaged:
        typer.echo(f"note: {f.name} is left out: {f.reason}", err=True)
    return [f for f in found if f not in damaged]


def named_runs(given: Sequence[Path]) -> list[Path]:
    """What --diff compares: folders as they stand, or names as a list of runs/ or of the first folder shows them."""
    first, rest = (given[0], given[1:]) if given else (Path("runs"), [])
    holds = any((first / p).is_dir() for p in rest)
    if holds and not (first / "config.json").exists():
        return [first / p if (first / p).is_dir() else p for p in rest]
    return [p if p.is_dir() or not (Path("runs") / p).is_dir() else Path("runs") / p for p in given]


def as_named(found: Sequence[Found], named: Sequence[Path]) -> list[Found]:
    """In the order the user gave, not in that of the clock."""
    order = [p.resolve() for p in named]

    def place(f: Found) -> int:
        return next((i for i, p in enumerate(order) if f.path.resolve().is_relative_to(p)), len(order))

    return sorted(found, key=place)


def csv_place(text: str | None, several: bool) -> Path | None:
    """Where the CSV goes: never over a run's own file."""
    if text is None:
        return None
    from headway.rundir import check_writable, prepare_folder

    place, asked = Path(text), (f"csv={text}", "choose another --csv")
    if several and (text.endswith("/") or place.is_dir()):
        prepare_folder(place, *asked)
        return place
    if place.suffix.lower() != ".csv":
        raise ConfigError(f"csv={text}: the file must end in .csv, such as {place.with_suffix('.csv').name}")
    if place.is_dir() or not place.parent.is_dir():
        raise CheckpointError(f"csv={text}: it cannot be written there; give a file in a folder that exists")
    check_writable(place.parent, *asked)
    return place


def save(place: Path | None, rows: Sequence[dict[str, Any]], overwrite: bool) -> None:
    from headway.diagnostics.finding import csv_text
    from headway.values import write_atomic

    if place:
        named = [{safe(str(k)): v for k, v in row.items()} for row in rows]
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
    for name in map(safe, names):
        taken.append(next(n for n in (name, *(f"{name}-{i}" for i in range(2, len(names) + 2))) if n not in taken))
    return taken


def safe(text: str) -> str:
    from headway.comparison import safe_cell

    return safe_cell(text)


def file_name(name: str, taken: Sequence[str]) -> str:
    """A run's name as that of a file; a/b and a-b do not share one."""
    from headway.comparison import slug

    plain = slug(name.replace("/", "-"))
    return next(n for n in (plain, *(f"{plain}-{i}" for i in range(2, len(taken) + 3))) if n not in taken)


def listed(shown: Sequence[str]) -> list[str]:
    """The columns of the CSV: rounds done stand beside the rounds asked for."""
    return [key for column in shown for key in ((column, "rounds_done") if column == "rounds" else (column,))]


# ---- for people
def clean(value: Any) -> str:
    """Text that prints as it is: neither markup nor control characters of a hostile name come through."""
    return escape("".join(c if c.isprintable() else "?" for c in str(value)))


def cell(f: Found, key: str) -> str:
    from headway.show import percent

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
    """The columns for which a terminal has room, the least needed left out first; a run's name can be copied whole."""
    needed = {key: 3 + max(map(len, [TITLES.get(key, key), *column])) for key, column in cells.items()}
    kept = list(cells)
    for key in ("started", "megabytes", "seconds", "data", "partition", "state", "rounds", "recipe"):
        if sum(needed[k] for k in kept) <= width:
            break
        kept.remove(key)
    return kept


def print_runs(console: Console, found: Sequence[Found], shown: Sequence[str], place: Path | None) -> None:
    from headway import found_runs as work
    from headway.show import plain_table

    if found:
        cells = {key: [cell(f, key) for f in found] for key in shown}
        usual = console.is_terminal and tuple(shown) == work.COLUMNS  # a pipe gets all of them
        fitting = that_fit(cells, console.width) if usual else list(shown)
        table = plain_table(*(TITLES.get(key, key) for key in fitting))
        for column, key in zip(table.columns, fitting, strict=True):
            column.justify = "right" if key in TITLES or key == "rounds" else "left"
            column.no_wrap, column.overflow = key == "run", "fold"
        for row in zip(*(cells[key] for key in fitting), strict=True):
            table.add_row(*row)
        console.print(table)
        if left := [key for key in shown if key not in fitting]:
            console.print(f"left out for want of room: {', '.join(left)}; choose with --columns")
    for f in found:
        if f.reason:
            console.print(f"{f.state}: {clean(f.name)}: {clean(f.reason)}")
    console.print(work.told_in_all(found) + (f" -> {clean(place)}" if place else ""))


def print_difference(console: Console, table: dict[str, Any], place: Path | None) -> None:
    from headway.show import percent, plain_table

    lines = plain_table("", *map(clean, table["runs"]))
    for key, values in table["settings"].items():
        lines.add_row(key, *("-" if v is None else clean(v) for v in values))
    if not table["settings"]:
        lines.add_row("settings", *["the same"] * len(table["runs"]))
    lines.add_section()
    for key, values in table["figures"].items():
        shares = TITLES.get(key, "").endswith("%")
        told = [percent(v) if shares else f"{v:.1f}" if isinstance(v, float) else v for v in values]
        lines.add_row(
            TITLES.get(key, key), *("-" if v is None else clean(t) for v, t in zip(values, told, strict=True))
        )
    console.print(lines)
    if place:
        console.print(f"-> {clean(place)}")


def print_metrics(console: Console, rows: Sequence[dict[str, Any]], place: Path | None) -> None:
    from headway.diagnostics.finding import csv_text
    from headway.progress import counted

    if place:
        console.print(
            f"{counted(len(rows), 'round')} of {counted(len({r['run'] for r in rows}), 'run')} -> {clean(place)}"
        )
    else:
        console.out(csv_text(rows).rstrip("\n"), highlight=False)
