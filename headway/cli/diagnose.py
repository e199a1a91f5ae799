"""`headway diagnose`: the papers' numbers and figures of finished runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape

from headway.analysis.diagnostics.catalogue import DIAGNOSTICS, WITHOUT_MODEL, chosen
from headway.base.errors import CheckpointError, ConfigError, DiskError, HeadwayError, to_copy
from headway.base.lazy import LazyModule
from headway.base.text import slug
from headway.cli import completion
from headway.cli.failure import fail
from headway.cli.help import Argument, declare
from headway.cli.options import json_output, plugin, quiet, text
from headway.cli.output import emit, plain_table
from headway.cli.values import number, out_in, run_folder

if TYPE_CHECKING:
    from headway.analysis.diagnostics import diagnose, subject
    from headway.cli import progress as progressing
    from headway.runs import directory
    from headway.runs.options import Progress
else:  # torch comes with them
    diagnose = LazyModule("headway.analysis.diagnostics.diagnose")
    subject = LazyModule("headway.analysis.diagnostics.subject")
    directory, progressing = LazyModule("headway.runs.directory"), LazyModule("headway.cli.progress")

PATHS = Argument(
    "paths", nargs=-1, required=True, metavar="RUN...", about="one run directory or more",
    shell_complete=completion.folders,
)  # fmt: skip
OPTIONS = [
    text("--only", about=f"some of {', '.join(DIAGNOSTICS)}; all if not given"),
    text("--out", about="the folder to save to [RUN/diagnostics]", shell_complete=completion.folders),
    text("--clients", about="clients whose local models are analysed, at most [20]"),
    json_output(),
    quiet(),
]


@declare("diagnose", PATHS, *OPTIONS, plugin())
def command(
    paths: tuple[str, ...], only: str | None, out: str | None, clients: str | None, as_json: bool, quiet: bool
) -> None:
    """Analyse finished runs: the papers' numbers and figures.

    Saves each diagnostic as JSON, CSV tables and a PNG, and prints the main figures.
    """
    names = chosen(only)
    most = number("clients", clients, int, 1, 1000) or 20
    runs = [finished(path) for path in paths]
    if twice := [path for i, path in enumerate(runs) if path in runs[:i]]:
        raise ConfigError(f"run={twice[0]}: it is named twice; name each run once")
    results, refused = [], []
    for path, folder in zip(runs, folders(runs, out_in(out)), strict=True):
        progress = progressing.progress_on_stderr(quiet or as_json)
        steps = Steps(progress, str(path), len(names))
        asked = ("",) if out else (f"run={path}", "name another folder with --out")
        try:
            directory.check_writable(folder, *asked)
            of = subject.Subject.with_or_without_model(path, steps.say, most)
            if of.no_model and not set(names) & set(WITHOUT_MODEL):
                raise CheckpointError(of.no_model)
            directory.prepare_folder(folder, *asked)
            steps.begin()
            results.append(diagnose.diagnose(of, names, folder, steps.at))
        except DiskError:
            raise
        except HeadwayError as error:  # the other runs are analysed all the same
            refused.append(str(error))
        finally:
            progress.end()
    if results:
        emit(as_json, [r.record() for r in results], lambda console: print_results(console, results))
    for why in refused:
        fail(why, 2)
    bugs = [f"{r.run}: {name} failed: {r.failed[name]}" for r in results for name in r.bugs]
    for line in bugs:
        fail(line, 1)
    if bugs or not results:
        raise click.exceptions.Exit(1 if bugs else 2)


class Steps:
    """A bar over diagnostics on a terminal; elsewhere a line each, and of what goes on inside one a second."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self.progress, self.label, self.total = progress, label, total
        self.live = isinstance(progress, progressing.Bar)
        self._last = 0.0

    def begin(self) -> None:
        if self.live:
            self.progress.begin(f"{self.label}: diagnostics", 0, self.total)

    def at(self, done: int, name: str) -> None:
        if self.live:
            self.progress.round({"round": done, "global_acc": None, "personal_acc": None})
            self.progress.say(name)
        elif name:
            self.progress.say(f"{self.label}: {name} ({done + 1} of {self.total})")

    def say(self, text: str) -> None:
        now = time.monotonic()
        if self.live:
            self.progress.say(text)
        elif now - self._last >= 1:
            self._last = now
            self.progress.say(f"{self.label}: {text}")


def finished(text: str) -> Path:
    """A run directory that can be analysed."""
    path = run_folder(text)
    if not (path / "summary.json").exists():
        raise CheckpointError(f"{path} is not a finished run; {to_copy('resume', path)} first")
    return path


def folders(runs: Sequence[Path], out: Path | None) -> list[Path]:
    """Where each run's findings go: its own folder, or --out, with a folder a run in it when there are several."""
    if out is None:
        return [path / "diagnostics" for path in runs]
    if len(runs) == 1:
        return [out]
    names = [slug(str(path)).strip("_") for path in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"out={out}: two of the runs would share a folder there; diagnose them one by one")
    return [out / name for name in names]


def print_results(console: Console, results: Sequence[diagnose.Results]) -> None:
    for looked in results:
        table = plain_table(str(looked.run), "figures")
        table.columns[0].header = escape(str(looked.run))
        table.columns[0].no_wrap = True
        table.columns[1].justify = "left"
        for finding in looked.findings:
            table.add_row(finding.name, escape(figures(finding.summary)))
        for kind, reasons in (("skipped", looked.skipped), ("failed", looked.failed)):
            for name, why in reasons.items():
                if why != looked.no_model:
                    table.add_row(name, escape(f"{kind}: {why}"))
        if looked.no_model in looked.skipped.values():  # one reason for all of them
            table.add_row("others", escape(f"skipped: {looked.no_model}"))
        console.print(table)
        if looked.findings:
            console.print(f"tables and figures in {looked.folder}", markup=False)


def figures(summary: Any) -> str:
    """`sw 3.1, forecast 0.12`"""
    return ", ".join(f"{key} {value_text(value)}" for key, value in summary.items())


def value_text(value: Any) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
