"""The page: sections put together, style and script inside it, allowed by their hashes and nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from headway.analysis.report import background, cost, findings, leaderboard, provenance, results
from headway.analysis.report.gather import Gathered, gather
from headway.analysis.report.markup import Markup, el
from headway.analysis.report.parts import counted, listed
from headway.analysis.report.stats import verdicts
from headway.analysis.report.steps import SILENT, Steps
from headway.base.errors import CheckpointError, ConfigError
from headway.base.serialise import write_atomic
from headway.base.version import __version__
from headway.base.wording import either, option
from headway.runs.directory import another_out, prepare_folder

GENERATOR = "headway report"
HEAD = 4096  # bytes in which a page says what it is
CONTENTS = {  # in the order of the page
    "recipes": "Recipes",
    "leaderboard": "Leaderboard",
    "curves": "Learning curves",
    "clients": "Clients",
    "cost": "Cost",
    "diagnostics": "Diagnostics",
    "partition": "Data",
    "origin": "How it was made",
}


def report(
    paths: Sequence[Path | str],
    out: Path | str | None = None,
    *,
    title: str | None = None,
    diagnose: bool = False,
    overwrite: bool = False,
    steps: Steps = SILENT,
) -> Path:
    """Write the page of these runs; without `out` into the one folder given, or here."""
    place, g = prepared(paths, out, overwrite, steps)
    if diagnose:
        findings.diagnose(g, steps)
    write_atomic(place, page(g, title, steps))
    return place


def prepared(
    paths: Sequence[Path | str], out: Path | str | None, overwrite: bool, steps: Steps
) -> tuple[Path, Gathered]:
    """Where the page goes and what it shows; whatever is wrong is said before any work."""
    folders = [Path(p) for p in paths]
    place = Path(out) if out is not None else (folders[0] if len(folders) == 1 else Path()) / "report.html"
    if out is not None:
        check_place(place, overwrite)
    g = gather(folders, steps)
    check_place(place, overwrite)
    asked = f"out={out}" if out is not None else f"run={place.parent}"
    prepare_folder(
        place.parent, asked, another_out() if out is not None else f"name another place with {option('out')}"
    )
    return place, g


def check_place(place: Path, overwrite: bool) -> None:
    """An earlier report may be replaced; anything else only when asked to."""
    if place.is_dir():
        raise ConfigError(f"out={place}: it is a folder; name a file, such as {place / 'report.html'}")
    if place.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"out={place}: the report is an HTML page; give it a name that ends in .html")
    if not place.exists() or overwrite:
        return
    try:
        with open(place, "rb") as f:
            ours = f'content="{GENERATOR}"'.encode() in f.read(HEAD)
    except OSError as error:
        raise CheckpointError(f"out={place}: it cannot be read ({error.strerror}); {another_out()}") from None
    if not ours:
        replace = either(python="", command=f", or {option('overwrite', True)} to replace it")  # Run.report has no such
        raise CheckpointError(f"out={place}: it is not a report of headway; {another_out()}{replace}")


def page(g: Gathered, title: str | None = None, steps: Steps = SILENT) -> str:
    """The whole page as text; the same runs give the same bytes."""
    style, script = asset("page.css"), asset("page.js")
    tests = verdicts(g)
    made: list[object] = []
    sections: dict[str, Callable[[], Markup]] = {
        "recipes": lambda: background.recipes(g),
        "leaderboard": lambda: leaderboard.leaderboard(g, tests),
        "curves": lambda: results.learning(g),
        "clients": lambda: results.clients(g),
        "cost": lambda: cost.cost(g),
        "diagnostics": lambda: findings.diagnostics(g, steps),
        "partition": lambda: background.partitions(g),
        "origin": lambda: provenance.origin(g),
    }
    steps.begin("writing", len(sections))
    for done, (name, make) in enumerate(sections.items()):
        steps.at(done, CONTENTS[name])
        made.append(make())
    steps.at(len(sections), "")
    heading = title or default_title(g)
    links = [el("li", el("a", words, href=f"#{name}")) for name, words in CONTENTS.items()]
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy(style, script)),
        el("meta", name="generator", content=GENERATOR),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", heading),
        el("style", Markup(style)),
    )
    top = el(
        "header",
        el("p", "headway report", cls="kind"),
        el("h1", heading),
        el("p", leaderboard.task_line(g), cls="task"),
        leaderboard.in_words(g, tests),
    )
    body = el(
        "body",
        el("a", "Skip to the content", href="#main", cls="skip"),
        top,
        el("nav", el("ul", *links), aria_label="Contents"),
        el("main", *made, id="main", tabindex="-1"),
        el(
            "footer",
            el(
                "p",
                (f"Made by headway {__version__} from {counted(len(g.runs), 'run directory', 'run directories')}."),
            ),
        ),
        el("script", Markup(script)),
    )
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"


def default_title(g: Gathered) -> str:
    labels = [x.label for x in g.groups]
    shown = listed(labels) if len(labels) <= 4 else f"{len(labels)} recipes"
    data = list(dict.fromkeys(str(x.settings.get("data")) for x in g.groups))
    return f"{shown} on {listed(data)}"


def asset(name: str) -> str:
    return (resources.files("headway.analysis.report") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Nothing from anywhere, but this very style and script and pictures that are part of the page."""
    return (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'"
    )


def hash_of(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def record(place: Path, g: Gathered) -> dict[str, Any]:
    """What the command prints for scripts."""
    tests = verdicts(g)
    rows = [
        {
            "recipe": x.label,
            "pieces": x.recipe,
            "seeds": x.seeds,
            "reference": x.base,
            "failed": sum(r.failed is not None for r in x.runs),
            "unfinished": sum(r.unfinished for r in x.runs),
            **{
                name: {"mean": x.mean(name), "std": x.std(name)}
                for name in ("global", "last5", "best", "personal", "pooled", "worst", "megabytes", "seconds")
            },
            "tests": {
                name: {"p": v.p, "mark": v.mark, "why": v.why, "pairs": v.pairs}
                for name in tests
                if (v := tests[name].get(x.key))
            },
        }
        for x in g.groups
    ]
    damaged = [{"run": str(path), "reason": why} for path, why in g.damaged.items()]
    return {
        "report": str(place),
        "bytes": place.stat().st_size,
        "differing": g.differing,
        "damaged": damaged,
        "leaderboard": rows,
    }
