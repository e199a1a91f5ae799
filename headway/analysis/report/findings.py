"""The diagnostics that `headway diagnose` saved beside the runs: words, numbers and figures, side by side."""

from __future__ import annotations

import base64
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.analysis.diagnostics.catalogue import DIAGNOSTICS
from headway.analysis.diagnostics.diagnose import diagnose as diagnose_run
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.report.gather import Entry, Gathered, Group
from headway.analysis.report.markup import Markup, details, el, join, plain, prose, table
from headway.analysis.report.parts import NOTHING, counted, index_of, labelled, listed, name_of, section
from headway.analysis.report.steps import Steps
from headway.analysis.report.svg import shortened
from headway.base.errors import HeadwayError
from headway.runs.directory import COPY_THE_RUN, prepare_folder

if TYPE_CHECKING:
    from PIL.Image import Image

BUDGET = 2_000_000  # characters of all figures together: the page stays light enough to be sent by mail
WIDEST = 900  # pixels of a figure, more than its place on the page has
NAMED = 12  # figures left out that are named
ROWS, COLUMNS = 12, 12  # of a table
TINY = 1e-6  # what is smaller is left over from rounding


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


def diagnostics(g: Gathered, steps: Steps) -> Markup:
    found = findings_of(g)
    if not found:
        words = shlex.join(["headway", "diagnose", str(g.runs[0].path)])
        return section(
            "diagnostics",
            "Diagnostics",
            el("p", "None is saved beside these runs. This computes them; then make the page again:"),
            el("pre", el("code", words)),
        )
    pictures = chosen_figures(found, steps)
    several = len({f.run.path for row in found.values() for f in row}) > 1
    parts = [one(name, row, pictures, several) for name, row in found.items()]
    lacking = [r for r in g.runs if all(f.run is not r for row in found.values() for f in row)]
    note = (
        f"{counted(len(lacking), 'run')} of {len(g.runs)} {'has' if len(lacking) == 1 else 'have'} no diagnostics."
        if lacking
        else ""
    )
    return section("diagnostics", "Diagnostics", el("p", note, cls="note") if note else "", *parts)


@dataclass(frozen=True)
class Pictures:
    """The figures that the page holds, as data addresses, and those left out to keep it small."""

    shown: Mapping[Path, str]
    left_out: frozenset[Path] = frozenset()


def chosen_figures(found: Mapping[str, list[Found]], steps: Steps) -> Pictures:
    """The first seed's figure of each recipe: a diagnostic for all recipes, or else for the best of them."""
    rows = []
    for name, row in found.items():
        steps.say(f"figures: {name}")
        firsts = {f.group.key: f for f in reversed(row)}.values()
        pngs = [f.png for f in sorted(firsts, key=lambda f: index_of(f.group)) if f.png and f.png.is_file()]
        rows.append({png: data for png in pngs if (data := embedded(png)) is not None})
    shown: dict[Path, str] = {}
    spent = 0
    for group in (*rows, *({png: data} for row in rows for png, data in row.items())):
        cost = sum(len(data) for png, data in group.items() if png not in shown)
        if spent + cost <= BUDGET:
            shown |= group
            spent += cost
    return Pictures(shown, frozenset(png for row in rows for png in row if png not in shown))


def embedded(path: Path) -> str | None:
    """A PNG as a data address, at most WIDEST and with a palette, the smallest way; None when it is damaged."""
    from PIL import Image

    try:
        raw = path.read_bytes()
        with Image.open(io.BytesIO(raw), formats=["PNG"]) as image:
            flat = Image.new("RGB", image.size, "white")
            shown = image.convert("RGBA")
            flat.paste(shown, mask=shown.getchannel("A"))
        best = min(raw, with_palette(narrowed(flat)), key=len)
        if best is raw and flat.width > WIDEST:  # large pixels: narrowing blurs their edges into many colours
            best = min(raw, with_palette(flat), key=len)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return "data:image/png;base64," + base64.b64encode(best).decode()


def narrowed(image: Image) -> Image:
    from PIL.Image import Resampling

    if image.width <= WIDEST:
        return image
    return image.resize((WIDEST, max(1, round(image.height * WIDEST / image.width))), Resampling.LANCZOS)


def with_palette(image: Image) -> bytes:
    """A PNG of 256 colours; they cover the range, so that a legend's rare ones stay what they are."""
    from PIL.Image import Dither, Quantize

    small = io.BytesIO()
    image.quantize(256, Quantize.MAXCOVERAGE, dither=Dither.NONE).save(small, format="PNG", optimize=True)
    return small.getvalue()


def one(name: str, row: list[Found], pictures: Pictures, several: bool) -> Markup:
    """One diagnostic over all runs that have it."""
    first = row[0].record
    figures = [f for f in row if f.png in pictures.shown]
    shown = [picture(f, pictures.shown[f.png], several) for f in figures if f.png is not None]
    tables = [
        details(join(["Data", f": {f.group.label}, seed {f.run.seed}" if several else ""]), *data(f))
        for f in figures or row[:1]
        if f.record["tables"]
    ]
    return el(
        "article",
        el("h3", prose(first["title"])),
        el("p", prose(first["about"])),
        summary_table(first["title"], row, several),
        el("div", *shown, cls="pair" if len(shown) < 3 else "thirds") if shown else "",
        *(el("p", note, cls="note") for note in notes(row, pictures)),
        *tables,
        id=f"diagnostic-{_id(name)}",
    )


def notes(row: list[Found], pictures: Pictures) -> list[str]:
    """Which figures the page does not show, and where they are."""
    made = []
    left = [f"{f.group.label}, seed {f.run.seed}" for f in row if f.png in pictures.left_out]
    if left:
        more = [f"{len(left) - NAMED} more"] if len(left) > NAMED else []
        which = f"the figure{'s' * (len(left) > 1)} of {listed([*left[:NAMED], *more])}"
        made.append(f"Left out to keep the page light: {which}, beside the runs in their folder diagnostics.")
    known = {f.group.key for f in row if f.png in pictures.shown or f.png in pictures.left_out}
    seeds = [f for f in row if f.group.key in known and f.png and f.png.is_file()]
    if further := len(seeds) - len(known):
        made.append(f"{counted(further, 'figure')} of further seeds beside the runs, in their folder diagnostics.")
    return made


def _id(name: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)


def picture(f: Found, data: str, several: bool) -> Markup:
    alt = str(f.record.get("alt") or f.record["title"]).replace("`", "")
    caption = el("figcaption", labelled(f.group), f", seed {f.run.seed}") if several else ""
    return el("figure", el("img", src=data, alt=alt), caption, data_recipe=f.group.key)


def summary_table(title: str, row: list[Found], several: bool) -> Markup:
    names = list(dict.fromkeys(name for f in row for name in f.record["summary"]))
    if not names:
        return Markup()
    header = ["figure", *(join([name_of(f.group), f", seed {f.run.seed}"]) if several else "value" for f in row)]
    rows = [[name, *(shown(f.record["summary"].get(name)) for f in row)] for name in names]
    return table(f"{title}: summary", header, rows)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return "0" if abs(value) < TINY else f"{value:.4g}"
    return NOTHING if value is None else shortened(plain(value).replace("`", ""), 200)


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


def missing(run: Entry) -> list[str]:
    """The diagnostics that a run could have and has not, or not whole; an unfinished run can have none."""
    folder = run.path / "diagnostics"
    return [] if run.unfinished else [name for name in DIAGNOSTICS if _record(folder / f"{name}.json") is None]


def diagnose(g: Gathered, steps: Steps) -> None:
    """Compute the diagnostics that runs lack. An error in one run is reported and does not stop the others."""
    wanted = {run: names for run in g.runs if (names := missing(run))}
    if not wanted:
        return
    steps.begin("diagnosing", sum(map(len, wanted.values())))
    before = 0
    for run, names in wanted.items():
        steps.at(before, f"{run.path}: {names[0]}")
        try:
            diagnose_one(run.path, names, before, steps)
        except HeadwayError as error:
            steps.note(f"{run.path}: no further diagnostics ({error})")
        except Exception as error:  # a fault in one diagnostic; the page shows what there is
            steps.note(f"{run.path}: no further diagnostics ({type(error).__name__}: {error})")
        before += len(names)
    steps.at(before, "")


def diagnose_one(path: Path, names: Sequence[str], before: int, steps: Steps) -> None:
    """These diagnostics of one run, `before` steps of the whole being done already."""
    subject = Subject.with_or_without_model(path, steps.say)
    prepare_folder(path / "diagnostics", f"run={path}", COPY_THE_RUN)
    results = diagnose_run(
        subject, names, path / "diagnostics",
        lambda done, name: steps.at(before + done, f"{path}: {name}") if name else None,
    )  # fmt: skip
    for name, why in results.failed.items():
        steps.note(f"{path}: {name} failed: {why}")
