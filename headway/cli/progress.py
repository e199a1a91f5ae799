"""How a run shows itself: a live bar on a terminal, plain lines elsewhere, nothing when asked to be quiet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar

from headway.base.text import counted
from headway.runs.options import Progress


class Bar(Progress):
    """Rounds and clients, time left, accuracy so far."""

    def __init__(self, console: Console):
        self.console = console
        self._bar: RichBar | None = None

    def begin(self, label: str, done: int, total: int) -> None:
        self._bar = RichBar(
            TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TimeRemainingColumn(),
            console=self.console, transient=True, speed_estimate_period=math.inf,  # rounds may take minutes
        )  # fmt: skip
        self._rounds = self._bar.add_task(label, total=total, completed=done, note="")
        self._clients = self._bar.add_task("  clients", total=None, note="")
        self._bar.start()

    def client(self, done: int, total: int) -> None:
        if self._bar:
            self._bar.update(self._clients, completed=done, total=total)

    def round(self, row: Mapping[str, Any]) -> None:
        if self._bar:
            self._bar.update(self._rounds, completed=row["round"], note=scores(row))

    def say(self, text: str) -> None:
        if self._bar:
            self._bar.update(self._clients, description=f"  {escape(text)}")
        else:  # said before the first round: it stays on the screen
            self.console.print(text, markup=False, highlight=False)

    def end(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


class Lines(Progress):
    """For pipes and logs: a line when a round ends, at most one a second, the last always."""

    def __init__(self, console: Console):
        self.console = console
        self._label, self._total, self._first, self._last, self._start = "", 0, 0, 0.0, 0.0

    def begin(self, label: str, done: int, total: int) -> None:
        self._label, self._total, self._last, self._start = label, total, 0.0, time.monotonic()
        self._first = done
        from_where = f", continued after round {done}" if done else ""
        self._print(f"{label}: {counted(total, 'round')}{from_where}")

    def round(self, row: Mapping[str, Any]) -> None:
        now, t = time.monotonic(), row["round"]
        since = t - self._first - 1  # rounds after this process's first, which also warms up and tells little
        if since <= 0:
            self._start = now
        if t < self._total and now - self._last < 1:
            return
        self._last = now
        known = since > 0 or t == self._total
        left = f"{(now - self._start) / max(since, 1) * (self._total - t):.0f} s left" if known else ""
        self._print(f"{self._label}: round {t}/{self._total} {scores(row)} {left}".rstrip())

    def say(self, text: str) -> None:
        self._print(f"{self._label}: {text}" if self._label else text)

    def end(self) -> None:
        self._label = ""  # what is said before the next run begins is not about this one

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def scores(row: Mapping[str, Any]) -> str:
    """`global 81.2 % personal 90.1 %`"""
    named = {"global": row["global_acc"], "personal": row["personal_acc"]}
    return " ".join(f"{name} {100 * value:.1f} %" for name, value in named.items() if value is not None)


def progress_on_stderr(quiet: bool) -> Progress:
    return progress_for(Console(stderr=True), quiet)


def say_on_stderr(path: str, quiet: bool) -> Callable[[str], None]:
    """Prints the messages of a further step of a finished run."""
    progress = progress_on_stderr(quiet)
    return lambda text: progress.say(f"{path}: {text}")


def progress_for(console: Console, quiet: bool) -> Progress:
    if quiet:
        return Progress()
    return Bar(console) if console.is_terminal else Lines(console)
