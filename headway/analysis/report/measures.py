"""What the charts show, as numbers: curves over seeds, cost up to a target, differences client by client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np

from headway.analysis.report.gather import Entry, Group, finite

T = TypeVar("T")
POINTS = 160  # of a curve: more than the eye can part on the width of a chart
TARGETS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def thin(items: Sequence[T], most: int) -> list[T]:
    """An even choice with the first and the last; all where they are few."""
    if len(items) <= most:
        return list(items)
    chosen = np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))
    return [items[i] for i in chosen]


@dataclass(frozen=True)
class Point:
    """A round over seeds: the mean of those that reached it, the lowest and the highest."""

    round: int
    mean: float
    low: float
    high: float
    megabytes: float  # sent up and down until then, mean over the same seeds
    seconds: float  # taken until then, likewise


def curve(group: Group, column: str) -> list[Point]:
    """One metric round by round; rounds that were not evaluated are left out."""
    by_round: dict[int, list[tuple[float, float, float]]] = {}
    for run in group.runs:
        for row, sent, took in zip(run.rows, megabytes(run), seconds(run), strict=True):
            if (value := finite(row.get(column))) is not None:
                by_round.setdefault(row["round"], []).append((value, sent, took))
    points = []
    for t, seen in sorted(by_round.items()):
        mean, sent, took = (sum(column_) / len(seen) for column_ in zip(*seen, strict=True))
        values = [v for v, _, _ in seen]
        points.append(Point(t, mean, min(values), max(values), sent, took))
    return points


def megabytes(run: Entry) -> list[float]:
    """Megabytes sent both ways up to each row."""
    ways = ("bytes_up", "bytes_down")
    return list(accumulate(sum(finite(row.get(way)) or 0.0 for way in ways) / 1e6 for row in run.rows))


def seconds(run: Entry) -> list[float]:
    """Wall time up to each row."""
    return list(accumulate(run.times.get(row["round"], 0.0) for row in run.rows))


@dataclass(frozen=True)
class Reached:
    """What a recipe spent until it first reached a target accuracy: means over the seeds that did."""

    target: float
    seeds: int
    of: int
    rounds: float
    megabytes: float
    seconds: float


def reached(group: Group, target: float, column: str = "global_acc") -> Reached | None:
    """None: no seed reached it."""
    costs = []
    for run in group.runs:
        for row, sent, took in zip(run.rows, megabytes(run), seconds(run), strict=True):
            value = finite(row.get(column))
            if value is not None and value >= target:
                costs.append((float(row["round"]), sent, took))
                break
    if not costs:
        return None
    n = len(costs)
    return Reached(target, n, len(group.runs), *(sum(column_) / n for column_ in zip(*costs, strict=True)))


def targets_of(groups: Sequence[Group]) -> list[float]:
    """The targets that say something: at least one recipe reached them, and not all in the first round."""
    targets = []
    for target in TARGETS:
        found = [r for g in groups if (r := reached(g, target))]
        if found and any(r.rounds > 1 for r in found):
            targets.append(target)
    return targets


@dataclass(frozen=True)
class Change:
    """One client's personal accuracy against what it has under another recipe."""

    seed: int
    client: int
    difference: float
    samples: int | None
    classes: int | None


def changes(group: Group, other: Group) -> list[Change]:
    """Every client both evaluated, the greatest loss first."""
    ours, theirs = group.clients(), other.clients()
    held = {run.seed: run.held for run in group.runs}
    found = []
    for seed, k in sorted(ours.keys() & theirs.keys()):
        h = held[seed]
        known = h is not None and k < len(h.counts)
        samples = int(h.sizes[k]) if h is not None and known else None
        classes = int(h.classes[k]) if h is not None and known else None
        found.append(Change(seed, k, ours[seed, k] - theirs[seed, k], samples, classes))
    return sorted(found, key=lambda c: (c.difference, c.seed, c.client))


@dataclass(frozen=True)
class Spread:
    """A distribution in five numbers and its mean."""

    least: float
    lower: float
    median: float
    upper: float
    most: float
    mean: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    q = [float(v) for v in np.quantile(values, (0, 0.25, 0.5, 0.75, 1))]
    return Spread(q[0], q[1], q[2], q[3], q[4], sum(values) / len(values), len(values))
