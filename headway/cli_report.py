"""The command that writes the report page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from headway.cli_help import ARGUMENTS, Command
from headway.errors import ConfigError
from headway.report.telling import Telling

ARGUMENTS["runs"] = "run folders, or folders that hold runs, such as the --out of `headway compare`"


def register(app: typer.Typer) -> None:
    """Give the command line its `report`."""
    app.command("report", cls=Command)(report_command)


def report_command(
    runs: list[str] = typer.Argument(..., metavar="RUN..."),  # noqa: B008  typer's way
    out: str = typer.Option(
        None,
        "--out",
        help="the page to write [report.html in the folder given, of several folders in the working directory]",
    ),
    title: str = typer.Option(None, "--title", help="the page's heading; made from the runs when not given"),
    diagnose: bool = typer.Option(
        False, "--diagnose/--no-diagnose", help="first compute the diagnostics that runs lack"
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

    if out is not None and not out.strip():
        raise ConfigError(f"out={out!r}: it is empty; give a file, such as --out report.html, or leave it out")
    folders, place = check_some(runs), None if out is None else Path(out)
    if title is not None and not title.strip():
        raise ConfigError(f"title={title!r}: it is empty; give a title, or leave it out")
    told = Told(Console(stderr=True), quiet or as_json)
    try:
        place, g = page.prepared(folders, place, overwrite, told)
        if diagnose:
            findings.diagnose(g, told)
        write_atomic(place, page.page(g, title, told))
    finally:
        told.end()
    facts: dict[str, Any] = page.record(place, g)
    words = f"{place}: {len(g.runs)} run{'s' * (len(g.runs) != 1)}, {facts['bytes'] / 1e6:.2f} MB"
    words += f", {len(g.damaged)} damaged and left out" if g.damaged else ""
    emit(as_json, facts, lambda c: c.print(words, markup=False))


class Told(Telling):
    """A bar over the steps on a terminal; elsewhere plain lines, at most one a second, and every note."""

    def __init__(self, console: Console, quiet: bool) -> None:
        from headway.progress import Bar, progress_for

        self.console, self.progress = console, progress_for(console, quiet)
        self.live, self.quiet = isinstance(self.progress, Bar), quiet
        self._what, self._total, self._last = "", 0, time.monotonic()

    def begin(self, what: str, total: int) -> None:
        self.end()
        self._what, self._total = what, total
        if self.live:
            self.progress.begin(what, 0, total)

    def at(self, done: int, name: str) -> None:
        if self.live:
            self.progress.round({"round": done, "global_acc": None, "personal_acc": None})
            self.progress.say(name)
        elif name:
            self._line(f"{self._what} {done + 1} of {self._total}: {name}")

    def say(self, text: str) -> None:
        if self.live:
            self.progress.say(text)
        else:
            self._line(f"{self._what}: {text}")

    def note(self, text: str) -> None:
        if not self.quiet:
            self._print(text)

    def end(self) -> None:
        """The terminal is free again."""
        if self.live:
            self.progress.end()

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if not self.quiet and now - self._last >= 1:
            self._last = now
            self._print(text)

    def _print(self, text: str) -> None:
        shown = "".join(c if c.isprintable() else "?" for c in text)
        self.console.print(shown, markup=False, highlight=False, soft_wrap=True)
