"""A finding: what one diagnostic says of a run, as numbers, as a figure and in words."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.analysis.plotting.fonts import lettering, without_boxes
from headway.base.csv_table import Rows, csv_text
from headway.base.serialise import write_atomic
from headway.base.strict_json import strict
from headway.runs.directory import disk

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130
FOOTER = 0.2  # inches under a figure, for the run's name


class NotApplicable(Exception):
    """This diagnostic has nothing to look at in this run; the message says why."""


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
    run: tuple[str, ...] = ()  # the run it is of: recipe, data, seed; none where several are drawn together
    class_names: Sequence[str] = ()  # as the figure shows them, so that it is drawn in fonts that have their letters

    def record(self) -> dict[str, Any]:
        """The finding without its figure, fit for JSON."""
        words = {"name": self.name, "title": self.title, "about": self.about, "alt": self.alt}
        figure = f"{self.name}.png" if self.draw else None
        tables = {key: [dict(row) for row in rows] for key, rows in self.tables.items()}
        return strict({**words, "figure": figure, "summary": dict(self.summary), "tables": tables})

    def save(self, folder: Path) -> list[Path]:
        """The files of this finding; the JSON file is written last, so a finding that has one is whole."""
        files: dict[Path, str | bytes] = {
            folder / f"{self.name}.{key}.csv": csv_text(rows) for key, rows in self.tables.items()
        }
        if self.draw:
            files[folder / f"{self.name}.png"] = self.picture()
        record = json.dumps(self.record(), allow_nan=False) + "\n"
        with disk(folder / self.name, "look again"):
            forget(folder, self.name)
            try:
                for path, data in files.items():
                    write_atomic(path, data)
                write_atomic(folder / f"{self.name}.json", record)
            except BaseException:  # an interruption too: no part of a finding is left behind
                for path in files:
                    path.unlink(missing_ok=True)
                raise
        return [*files, folder / f"{self.name}.json"]

    def picture(self) -> bytes:
        """The figure as PNG; what the plotter has to say of letters it lacks is of no use to anybody."""
        assert self.draw is not None
        png = io.BytesIO()
        with warnings.catch_warnings(), lettering(self.class_names):
            warnings.simplefilter("ignore")
            self.draw().savefig(png, format="png", dpi=DPI)
            return with_footer(png.getvalue(), self.run) if self.run else png.getvalue()


def with_footer(png: bytes, run: Sequence[str]) -> bytes:
    """The picture with its run's name in a strip below, so that nothing in it has to give way."""
    from PIL import Image

    strip, whole = io.BytesIO(), io.BytesIO()
    above = Image.open(io.BytesIO(png))
    footer(above.width / DPI, run).savefig(strip, format="png", dpi=DPI)
    below = Image.open(strip)
    both = Image.new(above.mode, (above.width, above.height + below.height), "white")
    both.paste(above, (0, 0))
    both.paste(below, (0, above.height))
    both.save(whole, format="png")
    return whole.getvalue()


def footer(width: float, run: Sequence[str]) -> Figure:
    """One small line of so many inches; a long recipe is shortened, data and seed stay."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, FOOTER))
    recipe, *rest = (without_boxes("".join(c if c.isprintable() else " " for c in part)) for part in run)
    style: dict[str, Any] = {"ha": "right", "va": "center", "fontsize": 7, "color": "0.4", "parse_math": False}
    text = figure.text(1 - 0.08 / width, 0.5, ", ".join((recipe, *rest)), **style)
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    while text.get_window_extent(renderer).x0 < 0 and len(recipe) > 1:
        recipe = recipe.removesuffix("…")[:-1] + "…"
        text.set_text(", ".join((recipe, *rest)))
    return figure


def forget(folder: Path, name: str) -> None:
    """Take away an earlier finding of this name, its JSON file first: it is never seen beside newer tables."""
    path = folder / f"{name}.json"
    try:
        found = json.loads(path.read_text())
        tables = [key for key in found["tables"] if key.isidentifier()]
    except (OSError, ValueError, KeyError, TypeError):
        tables = []
    path.unlink(missing_ok=True)
    for old in (*(f"{name}.{key}.csv" for key in tables), f"{name}.png"):
        (folder / old).unlink(missing_ok=True)
