"""The diagnostics that `headway diagnose` saved beside the runs: words, numbers and figures, side by side."""

from __future__ import annotations

import base64
import io
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.diagnostics.catalogue import DIAGNOSTICS
from headway.diagnostics.looking import look
from headway.diagnostics.subject import Subject
from headway.errors import HeadwayError
from headway.report.gather import Entry, Gathered, Group
from headway.report.markup import Markup, details, el, join, plain, table
from headway.report.parts import NOTHING, counted, labelled, name_of, section
from headway.report.svg import shortened
from headway.rundir import prepare_folder

BUDGET = 2_000_000  # characters of all figures together: the page stays light enough to be sent by mail
ROWS, COLUMNS = 12, 12  # of a table


@dataclass(frozen=True)
class Found:
    """One saved finding of one run."""

    group: Group
    run: Entry
    record: Mapping[str, Any]

    @property
    def png(self) -> Path | None:
        """Its figure, if it stands beside the record and nowhere else."""
        name = self.record.get("figure")
        if not isinstance(name, str) or Path(name).name != name:
            return None
        return self.run.path / "diagnostics" / name


def findings_of(g: Gathered) -> dict[str, list[Found]]:
    """name -> what each run says, in the order of the leaderboard; a record that is not one is passed over."""
    found: dict[str, list[Found]] = {}
    for group in g.groups:
        for run in group.runs:
            for path in sorted((run.path / "diagnostics").glob("*.json")):
                if (record := _record(path)) is not None:
                    found.setdefault(path.stem, []).append(Found(group, run, record))
    return dict(sorted(found.items()))


def _record(path: Path) -> Mapping[str, Any] | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    kinds = {"title": str, "about": str, "summary": dict, "tables": dict}
    good = isinstance(record, dict) and all(isinstance(record.get(key), kind) for key, kind in kinds.items())
    return record if good else None


def diagnostics(g: Gathered) -> Markup:
    found = findings_of(g)
    if not found:
        words = shlex.join(["headway", "diagnose", str(g.runs[0].path)])
        return section(
            "diagnostics",
            "Diagnostics",
            el("p", "None is saved beside these runs. This computes them; then make the page again:"),
            el("pre", el("code", words)),
        )
    pictures = chosen_figures(found)
    several = len({f.run.path for row in found.values() for f in row}) > 1
    parts = [one(name, row, pictures, several) for name, row in found.items()]
    lacking = [r for r in g.runs if all(f.run is not r for row in found.values() for f in row)]
    note = (
        f"{counted(len(lacking), 'run')} of {len(g.runs)} {'has' if len(lacking) == 1 else 'have'} no diagnostics."
        if lacking
        else ""
    )
    return section("diagnostics", "Diagnostics", el("p", note, cls="note") if note else "", *parts)


def chosen_figures(found: Mapping[str, list[Found]]) -> dict[Path, str]:
    """Figures as data, the first seed of each recipe, the best recipes first, until the budget is spent."""
    pictures: dict[Path, str] = {}
    spent = 0
    firsts = [f for row in found.values() for f in {f.group.key: f for f in reversed(row)}.values()]
    for f in sorted(firsts, key=lambda f: int(f.group.key[1:])):
        if f.png is None or not f.png.is_file() or (data := embedded(f.png)) is None:
            continue
        if spent + len(data) <= BUDGET:
            pictures[f.png] = data
            spent += len(data)
    return pictures


def embedded(path: Path) -> str | None:
    """A PNG as a data address, written anew where that is smaller without changing a pixel; None when it is damaged."""
    from PIL import Image

    try:
        raw = path.read_bytes()
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
            flat = Image.new("RGB", image.size, "white")
            shown = image.convert("RGBA")
            flat.paste(shown, mask=shown.getchannel("A"))
        small = io.BytesIO()
        flat.save(small, format="PNG", optimize=True)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    best = min((raw, small.getvalue()), key=len)
    return "data:image/png;base64," + base64.b64encode(best).decode()


def one(name: str, row: list[Found], pictures: Mapping[Path, str], several: bool) -> Markup:
    """One diagnostic over all runs that have it."""
    first = row[0].record
    figures = [f for f in row if f.png in pictures]
    left = sum(f.png is not None for f in row) - len(figures)
    shown = [picture(f, pictures, several) for f in figures]
    note = f"{counted(left, 'further figure')} beside the runs, in their folder diagnostics." if left else ""
    tables = [
        details(join(["Data", f": {f.group.label}, seed {f.run.seed}" if several else ""]), *data(f))
        for f in figures or row[:1]
        if f.record["tables"]
    ]
    return el(
        "article",
        el("h3", first["title"]),
        el("p", first["about"]),
        summary_table(first["title"], row, several),
        el("div", *shown, cls="pair" if len(shown) < 3 else "thirds") if shown else "",
        el("p", note, cls="note") if note else "",
        *tables,
        id=f"diagnostic-{_id(name)}",
    )


def _id(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def picture(f: Found, pictures: Mapping[Path, str], several: bool) -> Markup:
    assert f.png is not None
    alt = str(f.record.get("alt") or f.record["title"])
    caption = el("figcaption", labelled(f.group), f", seed {f.run.seed}") if several else ""
    return el("figure", el("img", src=pictures[f.png], alt=alt), caption, data_recipe=f.group.key)


def summary_table(title: str, row: list[Found], several: bool) -> Markup:
    names = list(dict.fromkeys(name for f in row for name in f.record["summary"]))
    if not names:
        return Markup()
    header = ["figure", *(join([name_of(f.group), f", seed {f.run.seed}"]) if several else "value" for f in row)]
    rows = [[name, *(shown(f.record["summary"].get(name)) for f in row)] for name in names]
    return table(f"{title}: summary", header, rows)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return NOTHING if value is None else shortened(plain(value), 200)


def data(f: Found) -> list[Markup]:
    """The first rows and columns of a finding's tables."""
    made = []
    for name, rows in f.record["tables"].items():
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            continue
        columns = list(rows[0])[:COLUMNS]
        cut = f" ({len(rows[:ROWS])} of {counted(len(rows), 'row')})" if len(rows) > ROWS else ""
        cut += f" ({len(columns)} of {len(rows[0])} columns)" if len(rows[0]) > COLUMNS else ""
        made.append(table(f"{name}{cut}", columns, [[shown(r.get(c)) for c in columns] for r in rows[:ROWS]]))
    return made


def step(say: Callable[[str], None], path: Path, done: int, name: str) -> None:
    say(f"{path}: {name}, diagnostic {done + 1} of {len(DIAGNOSTICS)}")


def diagnose(g: Gathered, say: Callable[[str], None]) -> None:
    """Compute what is not there yet; a run whose data is gone, or that cannot be looked into, is left as it is."""
    for run in g.runs:
        if run.unfinished or run.failed or any((run.path / "diagnostics").glob("*.json")):
            continue
        say(f"diagnosing {run.path}")
        try:
            subject = Subject.of(run.path, say)
        except HeadwayError as error:
            say(f"{run.path}: no diagnostics ({error})")
            continue
        prepare_folder(run.path / "diagnostics")
        look(subject, list(DIAGNOSTICS), run.path / "diagnostics", partial(step, say, run.path))
