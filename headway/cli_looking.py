"""The command that looks at finished runs: diagnose."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape

from headway.cli_options import number, out_of, run_folder
from headway.diagnostics.catalogue import DIAGNOSTICS, WITHOUT_MODEL, chosen
from headway.errors import CheckpointError, ConfigError, DiskError, HeadwayError, to_copy

if TYPE_CHECKING:  # torch comes with it, and `headway --help` need not wait for that
    from headway.diagnostics.looking import Looked
    from headway.experiment import Progress


def diagnose_command(
    paths: list[str] = typer.Argument(..., metavar="RUN..."),  # noqa: B008  typer's way
    only: str = typer.Option(None, "--only", help=f"some of {', '.join(DIAGNOSTICS)}; all if not given"),
    out: str = typer.Option(None, "--out", help="the folder to save to [RUN/diagnostics]"),
    clients: str = typer.Option(None, "--clients", help="clients whose local models are looked at, at most [20]"),
    as_json: bool = typer.Option(False, "--json", help="print JSON on stdout, no progress"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """Look into finished runs: the papers' numbers and figures.

    Saves each diagnostic as JSON, CSV tables and a PNG, and prints the figures to remember.
    """
    from headway.cli import emit, fail
    from headway.diagnostics.looking import look
    from headway.diagnostics.subject import Subject
    from headway.progress import progress_for
    from headway.rundir import check_writable, prepare_folder

    names = chosen(only)
    most = number("clients", clients, int, 1, 1000) or 20
    runs = [finished(path) for path in paths]
    if twice := [path for i, path in enumerate(runs) if path in runs[:i]]:
        raise ConfigError(f"run={twice[0]}: it is named twice; name each run once")
    results, refused = [], []
    for path, folder in zip(runs, folders(runs, out_of(out)), strict=True):
        progress = progress_for(Console(stderr=True), quiet or as_json)
        steps = Steps(progress, str(path), len(names))
        asked = ("",) if out else (f"run={path}", "name another folder with --out")
        try:
            check_writable(folder, *asked)
            subject = Subject.with_or_without_model(path, steps.say, most)
            if subject.no_model and not set(names) & set(WITHOUT_MODEL):
                raise CheckpointError(subject.no_model)
            prepare_folder(folder, *asked)
            steps.begin()
            results.append(look(subject, names, folder, steps.at))
        except DiskError:
            raise
        except HeadwayError as error:  # this run's matter: the others are looked at all the same
            refused.append(str(error))
        finally:
            progress.end()
    if results:
        emit(as_json, [r.record() for r in results], lambda console: show(console, results))
    for why in refused:
        fail(why, 2)
    bugs = [f"{r.run}: {name} failed: {r.failed[name]}" for r in results for name in r.bugs]
    for line in bugs:
        fail(line, 1)
    if bugs or not results:
        raise typer.Exit(1 if bugs else 2)


class Steps:
    """A bar over diagnostics on a terminal; elsewhere a line each, and of what goes on inside one a second."""

    def __init__(self, progress: Progress, label: str, total: int) -> None:
        from headway.progress import Bar

        self.progress, self.label, self.total = progress, label, total
        self.live = isinstance(progress, Bar)
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
    """A run directory that may be looked at."""
    path = run_folder(text)
    if not (path / "summary.json").exists():
        raise CheckpointError(f"{path} is not a finished run; {to_copy('resume', path)} first")
    return path


def folders(runs: Sequence[Path], out: Path | None) -> list[Path]:
    """Where each run's findings go: its own folder, or --out, with a folder a run in it when there are several."""
    from headway.comparison import slug

    if out is None:
        return [path / "diagnostics" for path in runs]
    if len(runs) == 1:
        return [out]
    names = [slug(str(path)).strip("_") for path in runs]
    if len(set(names)) < len(names):
        raise ConfigError(f"out={out}: two of the runs would share a folder there; look at them one by one")
    return [out / name for name in names]


def show(console: Console, results: Sequence[Looked]) -> None:
    from headway.show import plain_table

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
