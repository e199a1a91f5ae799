"""The command that writes the report page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from headway.cli_help import ARGUMENTS, Command
from headway.cli_options import out_of
from headway.errors import ConfigError

ARGUMENTS["runs"] = "run folders, or folders that hold runs, such as the --out of `headway compare`"


def register(app: typer.Typer) -> None:
    """Give the command line its `report`."""
    app.command("report", cls=Command)(report_command)


def report_command(
    runs: list[str] = typer.Argument(..., metavar="RUN..."),  # noqa: B008  typer's way
    out: str = typer.Option(None, "--out", help="the page to write [report.html in the folder given]"),
    title: str = typer.Option(None, "--title", help="the page's heading; made from the runs when not given"),
    diagnose: bool = typer.Option(
        False, "--diagnose/--no-diagnose", help="first compute the diagnostics of runs that have none"
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="replace a file that is not a report"),
    as_json: bool = typer.Option(False, "--json", help="print JSON on stdout, no progress"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """One page about a run, or a comparison of many.

    The page is one HTML file that needs nothing else: charts, tests of significance, diagnostics, commands to repeat.
    """
    from headway.cli import emit
    from headway.report import findings, page
    from headway.report.gather import check_some
    from headway.values import write_atomic

    folders, place = check_some(runs), out_of(out)
    if title is not None and not title.strip():
        raise ConfigError(f"title={title!r}: it is empty; give a title, or leave it out")
    with telling(quiet or as_json) as say:
        place, g = page.prepared(folders, place, overwrite, say)
        if diagnose:
            findings.diagnose(g, say)
        write_atomic(place, page.page(g, title, say))
    facts: dict[str, Any] = page.record(place, g)
    words = f"{place}: {len(g.runs)} run{'s' * (len(g.runs) != 1)}, {facts['bytes'] / 1e6:.2f} MB"
    emit(as_json, facts, lambda c: c.print(words, markup=False))


@contextmanager
def telling(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is being done: one line that changes on a terminal; elsewhere plain lines, at most one a second."""
    console = Console(stderr=True, quiet=quiet)
    last = time.monotonic()

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= 1:
            last = time.monotonic()
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal or quiet:
        yield say
        return
    with console.status("report") as status:
        yield lambda text: status.update(escape(text))
