"""Measuring subjects against each other: each in its own process, in alternating turns, so that drift affects all."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headway.bench.memory import PeakMemory

PYTHON = (sys.executable, "-P")  # -P: do not import from the working directory, which may have a folder named headway
DISTURBED = 0.1  # a turn is disturbed if other programs used more than this share of the cores
Say = Callable[[str], None]


def same_package() -> dict[str, str]:
    """The environment in which a new process imports the same headway as this one, installed or not."""
    here = str(Path(__file__).parents[2])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))}


@dataclass(frozen=True)
class Measured:
    """The measurements of one subject. Every figure is the median over its turns."""

    name: str
    about: dict[str, Any]
    turns: Sequence[dict[str, Any]]
    peak_bytes: int = 0  # from the start of the process on
    round_bytes: int = 0  # during rounds only, as reading the data may need more

    def median(self, field: str) -> float:
        """The median of a field of the turns."""
        return statistics.median(turn[field] for turn in self.turns)

    @property
    def per_round(self) -> float:
        """Seconds per round."""
        return statistics.median(turn["seconds"] / turn["rounds"] for turn in self.turns)

    @property
    def faults(self) -> float:
        """Page faults per round."""
        return statistics.median(turn["faults"] / turn["rounds"] for turn in self.turns)

    @property
    def samples_per_second(self) -> float:
        return statistics.median(turn["samples"] / turn["seconds"] for turn in self.turns)

    @property
    def foreign(self) -> float:
        """The largest share of the cores that other programs used during a turn."""
        return max(float(turn["foreign"]) for turn in self.turns)

    def record(self) -> dict[str, Any]:
        """For JSON: the medians, and the seconds per round of every turn."""
        return {
            "seconds_per_round": self.per_round,
            "samples_per_second": self.samples_per_second,
            "cpu_seconds_per_round": self.median("cpu_seconds") / self.median("rounds"),
            "faults_per_round": self.faults,
            "peak_mb": self.peak_bytes / 1e6,
            "round_peak_mb": self.round_bytes / 1e6,
            "foreign_load": self.foreign,
            "turns": [turn["seconds"] / turn["rounds"] for turn in self.turns],
            **self.about,
        }


def ratio(ours: Measured, theirs: Measured) -> float:
    """Seconds per round of one subject divided by another's."""
    return ours.per_round / theirs.per_round


@dataclass
class Live:
    """The process of a subject."""

    name: str
    data: str
    workers: str
    about: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(  # noqa: S603  this very interpreter and package
            [*PYTHON, "-m", "headway.bench.subject", self.name, self.data, self.workers],
            env=same_package(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self.start_memory, self.memory = PeakMemory(self.process.pid), PeakMemory(self.process.pid)
        with self.start_memory.watching():
            self.about = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._errors.close()

    def turn(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._answer()

    def watched_turn(self) -> None:
        """A turn before or after the timed ones, in which memory is measured and time is not."""
        with self.memory.watching():
            self.turn()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"bench: {self.name} ended early:\n{self._errors.read()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def measured(self, chosen: Sequence[int]) -> Measured:
        turns, during = [self.turns[i] for i in chosen], self.memory.peak
        return Measured(self.name, self.about, turns, max(self.start_memory.peak, during), during)


def alternate(
    names: Sequence[str], repeats: int, *, data: str, workers: str, say: Say, watched: bool = True
) -> dict[str, Measured]:
    """The measurements of all subjects in alternating turns, a, b, a, b, ....

    A cycle that other programs disturbed is repeated; there are at most twice as many cycles as `repeats`.
    """
    with ExitStack() as stack:
        say(f"starting {', '.join(names)}")
        live = [stack.enter_context(Live(name, data, workers)) for name in names]
        if watched:
            for one in live:
                one.watched_turn()
        disturbed: list[float] = []  # share of the cores that other programs used, by cycle
        while sum(share <= DISTURBED for share in disturbed) < repeats and len(disturbed) < 2 * repeats:
            for one in live:
                one.turns.append(one.turn())
            disturbed.append(max(one.turns[-1]["foreign"] for one in live))
            shown = ", ".join(f"{one.name} {one.turns[-1]['seconds'] / one.turns[-1]['rounds']:.3g} s" for one in live)
            others = f"other programs used {100 * disturbed[-1]:.0f} % of the cores"
            say(f"cycle {len(disturbed)} of {repeats}: {shown}; {others}")
        if watched:
            for one in live:
                one.watched_turn()
        return {one.name: one.measured(quietest(disturbed, repeats)) for one in live}


def quietest(disturbed: Sequence[float], repeats: int) -> list[int]:
    """The least disturbed cycles, `repeats` of them, in the order in which they ran."""
    return sorted(sorted(range(len(disturbed)), key=lambda i: disturbed[i])[:repeats])
