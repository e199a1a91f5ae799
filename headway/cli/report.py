"""`headway report`: one page about runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.analysis.report.steps import Steps
from headway.base.errors import ConfigError
from headway.base.lazy import LazyModule
from headway.cli import completion
from headway.cli.help import Argument, Option, declare
from headway.cli.options import json_output, overwrite, plugin, quiet, text
from headway.cli.output import emit
from headway.cli.values import out_file_in

if TYPE_CHECKING:
    from headway.analysis.report import findings, gather, page
    from headway.base import serialise
    from headway.cli import progress
else:  # torch and matplotlib come with them
    findings = LazyModule("headway.analysis.report.findings")
    gather, page = LazyModule("headway.analysis.report.gather"), LazyModule("headway.analysis.report.page")
    serialise, progress = LazyModule("headway.base.serialise"), LazyModule("headway.cli.progress")

RUNS = Argument(
    "runs", nargs=-1, required=True, metavar="RUN...", shell_complete=completion.folders,
    about="run folders, or folders that hold runs, such as the --out of `headway compare`",
)  # fmt: skip
OPTIONS = [
    text(
        "--out",
        about="the page to write [report.html in the folder given, of several folders in the working directory]",
    ),
    text("--title", about="the page's heading; made from the runs when not given"),
    Option("--diagnose/--no-diagnose", about="first compute the diagnostics that runs lack", default=False),
    overwrite("a file that is not a report"),
    json_output(),
    quiet(),
]


@declare("report", RUNS, *OPTIONS, plugin())
def command(
    runs: tuple[str, ...],
    out: str | None,
    title: str | None,
    diagnose: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """One page about a run, or a comparison of many.

    The page is one HTML file that needs nothing else: charts, tests of significance, diagnostics, commands to repeat.
    """
    given = out_file_in(out, "report.html")
    folders = gather.run_paths(runs)
    if title is not None and not title.strip():
        raise ConfigError(f"title={title!r}: it is empty; give a title, or leave it out")
    steps = ReportProgress(Console(stderr=True), quiet or as_json)
    try:
        place, g = page.prepared(folders, None if given is None else Path(given), overwrite, steps)
        if diagnose:
            findings.diagnose(g, steps)
        serialise.write_atomic(place, page.page(g, title, steps))
    finally:
        steps.end()
    facts: dict[str, Any] = page.record(place, g)
    words = f"{place}: {len(g.runs)} run{'s' * (len(g.runs) != 1)}, {facts['bytes'] / 1e6:.2f} MB"
    words += f", {len(g.damaged)} damaged and left out" if g.damaged else ""
    emit(as_json, facts, lambda c: c.print(words, markup=False))


class ReportProgress(Steps):
    """A bar over the steps on a terminal; elsewhere plain lines, at most one a second, and every note."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console, self.progress = console, progress.progress_for(console, quiet)
        self.live, self.quiet = isinstance(self.progress, progress.Bar), quiet
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
        """Remove the bar."""
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
