"""Paper and ours side by result: values, differences to FedAvg, rank correlation; as text, CSV, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.analysis.published import NAMES, PAPERS, Published, citation
from headway.analysis.reproduce.plan import Cell
from headway.analysis.reproduce.trainings import Ours
from headway.base.csv_table import csv_text
from headway.base.serialise import write_atomic

CUT = "model, rounds and samples that are not the paper's are cut for two cores: compare orderings at best, not levels"
REFERENCES = ("fedavg", "fedavg+ft", "fedavg+etf", "local")  # others are compared with the first that a table has


@dataclass(frozen=True)
class Line:
    """One method of a setting: what the paper prints and what we measured, in percent."""

    method: str
    paper: float | None
    paper_std: float | None
    paper_failed: bool
    ours: float | None
    ours_std: float | None
    seeds: int
    failed: str | None  # why runs of ours count as failed
    missing: str | None  # why there is none of ours
    over: str | None = None  # the method of the same setting that gains are counted from
    paper_gain: float | None = None
    gain: float | None = None
    gain_std: float | None = None  # of the differences seed by seed
    agrees: str = ""  # yes, no; open: our seeds do not agree among themselves, or there is one only
    paper_read_as: str | None = None  # what the paper's figure should be, where it looks misprinted


@dataclass(frozen=True)
class Group:
    """All lines of one setting and metric."""

    setting: dict[str, Any]
    lines: tuple[Line, ...]
    rank: float | None  # Spearman's correlation of the two columns


@dataclass(frozen=True)
class TableResult:
    """A whole table."""

    name: str
    scale: str
    command: str
    seeds: tuple[int, ...]
    ran: dict[str, Any]  # the settings that all cells share
    groups: tuple[Group, ...]
    assumptions: tuple[str, ...] = ()
    seconds: float = 0.0  # of training, all runs
    changes: dict[str, Any] = field(default_factory=dict)  # settings that --set put in place of the paper's
    unnamed: int = 0  # rows whose method the paper's text has lost

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def show(self, console: Console) -> None:
        show(console, self)

    def save(self, out: Path) -> None:
        stem = self.name.partition("/")[2]
        write_atomic(out / f"{stem}.json", json.dumps(self.record(), indent=1) + "\n")
        rows = [{**g.setting, **asdict(line)} for g in self.groups for line in g.lines]
        write_atomic(out / f"{stem}.csv", csv_text(rows))
        write_atomic(out / f"{stem}.md", markdown(self))


def grouped(cells: Sequence[Cell], ours: Sequence[Ours]) -> tuple[Group, ...]:
    together: dict[tuple[Any, ...], list[tuple[Cell, Ours]]] = {}
    single_method = len({cell.row.method for cell in cells}) == 1 and len({cell.row.metric for cell in cells}) > 1
    for cell, found in zip(cells, ours, strict=True):
        key = setting_of(cell.row)
        if single_method:  # its metrics are the lines
            key["metric"] = None
        together.setdefault(tuple(key.items()), []).append((cell, found))
    return tuple(group_of(dict(key), pairs) for key, pairs in together.items())


def setting_of(row: Published) -> dict[str, Any]:
    names = ("dataset", "model", "partition", "clients", "sampling", "epochs", "metric")
    return {name: getattr(row, name) for name in names}


def group_of(setting: dict[str, Any], pairs: Sequence[tuple[Cell, Ours]]) -> Group:
    if setting["metric"] is None:
        lines = [replace(line_of(cell, found, None), method=cell.row.metric) for cell, found in pairs]
    else:
        lines = [line_of(cell, found, base_of(cell, pairs)) for cell, found in pairs]
    both = zip(pairs, lines, strict=True)
    return Group(setting, tuple(lines), spearman([(cell.row.sound, x.ours) for (cell, _), x in both if not x.failed]))


def base_of(cell: Cell, pairs: Sequence[tuple[Cell, Ours]]) -> tuple[Cell, Ours] | None:
    """What a line is compared with: the algorithm it adds to (`scaffold` for `scaffold+fn`), else FedAvg.

    Where a table varies the learning rate it is the one with the same, else the best the paper has.
    """
    known = {c.row.method for c, _ in pairs} - {cell.row.method}
    name = next((r for r in (cell.row.method.partition("+")[0], *REFERENCES) if r in known), None)
    of_name = [pair for pair in pairs if pair[0].row.method == name]
    same = [pair for pair in of_name if pair[0].row.extra.get("lr") == cell.row.extra.get("lr")]
    found = max(same or of_name, key=lambda pair: pair[0].row.sound or 0.0, default=None)
    return None if cell.row.method == REFERENCES[0] else found


def line_of(cell: Cell, found: Ours, base: tuple[Cell, Ours] | None) -> Line:
    row, values = cell.row, [v for v in found.values if v is not None]
    line = Line(
        cell.label, row.mean, row.std, row.failed, mean(values), std(values), len(values),
        next((why for why in found.failed if why), None), found.missing, paper_read_as=row.read_as,
    )  # fmt: skip
    if base is None:
        return line
    gains = [a - b for a, b in zip(found.values, base[1].values, strict=False) if a is not None and b is not None]
    paper_gain = None if row.sound is None or base[0].row.sound is None else row.sound - base[0].row.sound
    line = replace(line, over=base[0].row.method, paper_gain=paper_gain, gain=mean(gains), gain_std=std(gains))
    sound = not line.failed and not any(base[1].failed)
    return replace(line, agrees=verdict(paper_gain, gains)) if sound else line


def verdict(paper_gain: float | None, gains: Sequence[float]) -> str:
    """Whether both see a gain or both a loss, where our seeds agree; one seed, or seeds that differ, say nothing."""
    if paper_gain is None or not gains:
        return ""
    if len(gains) < 2 or paper_gain == 0 or not (min(gains) > 0 or max(gains) < 0):
        return "open"
    return "yes" if paper_gain * gains[0] > 0 else "no"


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def std(values: Sequence[float]) -> float | None:
    return float(np.std(values)) if values else None


def spearman(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """Rank correlation of two columns; None for fewer than three pairs or a column of one value."""
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if len(known) < 3:
        return None
    a, b = (ranks([pair[i] for pair in known]) for i in (0, 1))
    if np.std(a) == 0 or np.std(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def ranks(values: Sequence[float]) -> np.ndarray[Any, Any]:
    """1 for the smallest; equal values share the mean of their ranks."""
    v = np.asarray(values)
    return np.array([(v < x).sum() + ((v == x).sum() + 1) / 2 for x in v])


# ---- printing
COLUMNS = ("method", "paper %", "ours %", "over", "paper: gain", "ours: gain", "same sign")


def columns_of(result: TableResult) -> tuple[str, ...]:
    return (*COLUMNS, "ours - paper") if comparable(result.scale, result.changes) else COLUMNS


def comparable(scale: str, changes: Mapping[str, Any]) -> bool:
    """Levels are compared only where nothing was cut or changed."""
    return scale == "full" and not changes


def cells_of(line: Line) -> tuple[str, ...]:
    paper = printed(line)
    ours = "not run" if line.missing else number(line.ours, line.ours_std if line.seeds > 1 else None)
    ours += " failed" if line.failed and not line.missing else ""
    gain = number(line.gain, line.gain_std if line.seeds > 1 else None, sign=True)
    unsound = line.paper_failed or line.paper_read_as
    apart = None if unsound or line.ours is None or line.paper is None else line.ours - line.paper
    paper_gain = number(line.paper_gain, None, sign=True)
    return (line.method, paper, ours, line.over or "", paper_gain, gain, line.agrees, number(apart, None, sign=True))


def printed(line: Line) -> str:
    """The paper's figure, marked where it is not to be compared."""
    value = number(line.paper, line.paper_std)
    if line.paper_failed:
        return f"failed ({value})" if value else "failed"
    return f"{value} ?" if line.paper_read_as else value


def number(value: float | None, spread: float | None, sign: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return ""
    text = f"{value:+.2f}" if sign else f"{value:.2f}"
    return text if spread is None else f"{text} ± {spread:.2f}"


def heading(group: Group) -> str:
    values = [f"{v}" if k in ("dataset", "model", "partition", "metric") else f"{k} {v:g}"
            for k, v in group.setting.items() if v is not None]  # fmt: skip
    return f"paper: {', '.join(values)}"


def footer(group: Group) -> str:
    judged = [line.agrees for line in group.lines if line.agrees in ("yes", "no")]
    signs = f"{judged.count('yes')} of {len(judged)} gains that all seeds agree on have the paper's sign"
    rank = "" if group.rank is None else f"rank correlation {group.rank:+.2f}"
    return "; ".join(text for text in (signs if judged else "", rank) if text)


def difference(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def show(console: Console, result: TableResult) -> None:
    console.print(f"{result.name} at scale {result.scale}, seeds {', '.join(map(str, result.seeds))}", markup=False)
    for group in result.groups:
        table = Table(title=escape(heading(group)), title_justify="left", box=None, pad_edge=False)
        columns = columns_of(result)
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
        for line in group.lines:
            table.add_row(*(escape(cell) for cell in cells_of(line)[: len(columns)]))
        console.print()
        console.print(table)
        if text := footer(group):
            console.print(text, markup=False)
    for reason in dict.fromkeys(x.missing for g in result.groups for x in g.lines if x.missing):
        console.print(f"not run: {reason}", markup=False)
    for reason in dict.fromkeys(f"{x.method}: {x.failed}" for g in result.groups for x in g.lines if x.failed):
        console.print(f"failed: {reason}", markup=False)
    for text in misprints(result):
        console.print(text, markup=False)
    console.print(f"\nours: {difference(result.ran)}", markup=False)
    for text in notes(result):
        console.print(f"assumed: {text}", markup=False)


def misprints(result: TableResult) -> list[str]:
    """One line for all cells marked with a question mark."""
    doubted = [x for g in result.groups for x in g.lines if x.paper_read_as]
    if not doubted:
        return []
    cells = ", ".join(f"{x.paper_read_as} for {number(x.paper, None)} of {x.method}" for x in doubted)
    return [f"? looks misprinted and counts in no gain, sign or rank: we read {cells}"]


def notes(result: TableResult) -> list[str]:
    unnamed = f"{result.unnamed} rows of the table have lost their method's name and are left out"
    return [*result.assumptions, *([unnamed] if result.unnamed else []), *departures(result.scale, result.changes)]


def departures(scale: str, changes: Mapping[str, Any]) -> list[str]:
    """What is not the paper's setting, by the scale and by the user's will."""
    changed = [f"changed by --set, whatever is said above: {difference(changes)}"] if changes else []
    return [*([CUT] if scale == "cpu" else []), *changed]


def markdown(result: TableResult) -> str:
    paper = result.name.partition("/")[0]
    text = [f"## {NAMES[paper]}, {result.name.partition('/')[2]}", "", citation(PAPERS[paper]), "",
            f"`{result.command}`", ""]  # fmt: skip
    for group in result.groups:
        columns = columns_of(result)
        text += [f"**{heading(group)}**", "", bar(columns), "|---|" + "---:|" * (len(columns) - 1)]
        text += [bar([cell.replace("|", "\\|") for cell in cells_of(line)[: len(columns)]]) for line in group.lines]
        text += ["", *([f"{foot[0].upper()}{foot[1:]}.", ""] if (foot := footer(group)) else [])]
    reasons = dict.fromkeys(f"{x.method}: {x.failed}" for g in result.groups for x in g.lines if x.failed)
    text += [f"- failed: {reason}" for reason in reasons]
    missing = dict.fromkeys(x.missing for g in result.groups for x in g.lines if x.missing)
    text += [f"- not run: {why}" for why in missing]
    text += [f"- {note}" for note in misprints(result)]
    text += [f"- ours: {difference(result.ran)}", *(f"- {note}" for note in notes(result))]
    text += [f"- {result.seconds:.0f} s of rounds in all, {len(result.seeds)} seeds", ""]
    return "\n".join(text)


def bar(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
