"""A finding: what one diagnostic says of a run, as numbers, as a figure and in words."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.comparison import safe_cell
from headway.rundir import disk
from headway.strict_json import strict
from headway.values import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]  # one mapping a line of a CSV file; all with the same keys
DPI = 130


class NotApplicable(Exception):
    """The diagnostic does not apply to this run; the text says why."""


@dataclass(frozen=True)
class Finding:
    """Numbers and a figure of one diagnostic; `save` writes NAME.json, NAME.TABLE.csv and NAME.png."""

    name: str  # of its files: letters and underscores
    title: str
    about: str  # what is shown, how it is read, and which paper draws it
    summary: Mapping[str, float | int | str | None]  # the few figures to remember, by a readable name
    tables: Mapping[str, Rows] = field(default_factory=dict)
    alt: str = ""  # what the figure shows, for whoever cannot see it
    draw: Callable[[], Figure] | None = field(default=None, repr=False, compare=False)

    def record(self) -> dict[str, Any]:
        """The finding without its figure, fit for JSON."""
        words = {"name": self.name, "title": self.title, "about": self.about, "alt": self.alt}
        figure = f"{self.name}.png" if self.draw else None
        tables = {key: [dict(row) for row in rows] for key, rows in self.tables.items()}
        return strict({**words, "figure": figure, "summary": dict(self.summary), "tables": tables})

    def save(self, folder: Path) -> list[Path]:
        """The files of this finding; the JSON file is written last, so a finding that has one is whole."""
        written = []
        with disk(folder / self.name):
            for key, rows in self.tables.items():
                written.append(folder / f"{self.name}.{key}.csv")
                write_atomic(written[-1], csv_text(rows))
            if self.draw:
                png = io.BytesIO()
                self.draw().savefig(png, format="png", dpi=DPI)
                written.append(folder / f"{self.name}.png")
                write_atomic(written[-1], png.getvalue())
            written.append(folder / f"{self.name}.json")
            write_atomic(written[-1], json.dumps(self.record(), allow_nan=False) + "\n")
        return written


def csv_text(rows: Rows) -> str:
    """A table as CSV: what no number is stays empty, and no cell is taken for a formula."""
    text = io.StringIO()
    if rows:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(rows[0])
        table.writerows([cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    if isinstance(value, str):
        return safe_cell(value)
    if isinstance(value, float):
        return f"{value:.6g}" if value == value else ""
    return "" if value is None else value
