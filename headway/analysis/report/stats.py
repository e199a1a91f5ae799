"""Whether a difference is more than noise: paired tests against the reference, corrected for how many are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headway.analysis.report.gather import Gathered, Group

FEWEST_SEEDS = 3
FEWEST_CLIENTS = 6  # with five the smallest two-sided p of the signed-rank test is 2/32 = 0.0625: it can never say yes
LEVEL = 0.05
EXACT = 50  # differences whose sign patterns are counted one and all


@dataclass(frozen=True)
class Verdict:
    """A paired test of one figure of a recipe against the reference."""

    pairs: int
    difference: float | None  # mean over the pairs, recipe minus reference
    p: float | None  # two-sided; None: not tested, `why` says so
    why: str = ""
    tests: int = 1  # p is Holm-adjusted for so many

    @property
    def beyond_noise(self) -> bool:
        return self.p is not None and self.p < LEVEL

    @property
    def mark(self) -> str:
        """better, worse, unclear, or untested."""
        if self.p is None or self.difference is None:
            return "untested"
        return "unclear" if not self.beyond_noise else "better" if self.difference > 0 else "worse"


def shared(a: Mapping[Any, float], b: Mapping[Any, float]) -> list[float]:
    """Differences a - b of what both have, in a fixed order."""
    return [a[key] - b[key] for key in sorted(a.keys() & b.keys())]


def paired_t(a: Mapping[int, float], b: Mapping[int, float]) -> Verdict:
    """Paired t-test over the seeds both have: t = mean(d) / (std(d, ddof=1) / sqrt(n)), n - 1 degrees of freedom."""
    d = shared(a, b)
    n = len(d)
    mean = sum(d) / n if n else None
    if not a or not b:
        return Verdict(n, mean, None, "no global model")
    if n < FEWEST_SEEDS:
        return Verdict(n, mean, None, "too few seeds")
    if max(d) == min(d):
        return Verdict(n, mean, 1.0) if d[0] == 0 else Verdict(n, mean, None, "the same difference under every seed")
    from scipy.special import stdtr  # Student's distribution function; comes with scikit-learn

    t = float(np.mean(d)) / (float(np.std(d, ddof=1)) / n**0.5)
    return Verdict(n, mean, float(2 * stdtr(n - 1, -abs(t))))


def signed_rank(a: Mapping[Any, float], b: Mapping[Any, float]) -> Verdict:
    """Wilcoxon's signed-rank test over clients; clients without a difference say nothing and are left out of it."""
    d = shared(a, b)
    mean = sum(d) / len(d) if d else None
    moved = [x for x in d if abs(x) > 1e-12]
    if d and not moved:
        return Verdict(len(d), mean, 1.0)
    if len(moved) < FEWEST_CLIENTS:
        return Verdict(len(d), mean, None, "too few clients differ")
    return Verdict(len(d), mean, signed_rank_p([round(x, 12) for x in moved]))


def signed_rank_p(d: Sequence[float]) -> float:
    """Two-sided p of the sum of positive ranks: exact for up to 50 differences, ties included, else normal."""
    size = np.abs(d)
    _, place, times = np.unique(size, return_inverse=True, return_counts=True)
    doubled = (2 * np.cumsum(times) - times + 1)[place]  # twice the mean rank of each tie: whole numbers
    total, found = int(doubled.sum()), int(doubled[np.asarray(d) > 0].sum())
    away = abs(found - total / 2)
    if len(d) > EXACT:
        variance = float((doubled.astype(float) ** 2).sum()) / 4  # every sign is a fair coin
        return math.erfc(away / math.sqrt(2 * variance))
    ways = np.zeros(total + 1)  # ways[s]: sign patterns whose positive doubled ranks sum to s
    ways[0] = 1
    for rank in doubled:
        ways[rank:] = ways[rank:] + ways[: total + 1 - rank]
    sums = np.arange(total + 1)
    return min(1.0, float(ways[np.abs(sums - total / 2) >= away].sum() / 2.0 ** len(d)))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment: the i-th smallest of m (from 0) times m - i, never falling, at most 1."""
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, i) in enumerate(known):
        highest = max(highest, min(1.0, p * (len(known) - rank)))
        adjusted[i] = highest
    return adjusted


def verdicts(g: Gathered) -> dict[str, dict[str, Verdict]]:
    """figure -> key of the group -> its test against the reference; the reference itself has none."""
    others = [group for group in g.groups if not group.base]
    tested = {
        "global": [_over_seeds(x, g.base) for x in others],
        "personal": [_over_clients(x, g.base) for x in others],
    }
    found = {}
    for figure, row in tested.items():
        ps = holm([v.p for v in row])
        tests = sum(p is not None for p in ps)
        found[figure] = {x.key: replace(v, p=p, tests=tests) for x, v, p in zip(others, row, ps, strict=True)}
    return found


def _over_seeds(x: Group, base: Group) -> Verdict:
    verdict = paired_t(x.values("global"), base.values("global"))
    return verdict if x.whole and base.whole else replace(verdict, p=None, why="unfinished")


def _over_clients(x: Group, base: Group) -> Verdict:
    verdict = signed_rank(x.clients(), base.clients())
    if not x.whole or not base.whole:
        return replace(verdict, p=None, why="unfinished")
    return verdict if same_data(x, base) else replace(verdict, p=None, why="clients hold other data")


def same_data(x: Group, base: Group) -> bool:
    """Whether client k holds the same samples in both, under every seed they share."""
    ours, theirs = ({r.seed: r.config["identity"].get("partition_hash") for r in g.runs} for g in (x, base))
    return all(ours[seed] == theirs[seed] for seed in ours.keys() & theirs.keys())
