"""Phases that a test sets by hand, and a client with a table to train on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toy import task_of

from headway.base.names import in_head
from headway.core.phase import Phase
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.methods import recipe as parse


def slower_head(factor: float):
    """The head steps at this share of the rate."""
    return lambda step, name: replace(step, rate=factor * step.rate) if in_head(name) else step


def at_rate(rate: float):
    return lambda step, name: replace(step, rate=rate)


def table(n: int, **given):
    """One client with n samples of two features and alternating labels."""
    x = [[float(i), float(i % 3)] for i in range(n)]
    return task_of(x, [i % 2 for i in range(n)], [list(range(n))], **given)


@dataclass(frozen=True)
class Schedule(Piece):
    """A piece that sets the phases and nothing else."""

    name, slot = "schedule", "share"
    plan: tuple[Phase, ...] = ()

    def phases(self, epochs: int) -> list[Phase]:
        return list(self.plan)


def scheduled(*plan: Phase, head: str = "fedavg") -> Recipe:
    return Recipe((*parse(head).pieces, Schedule(plan)))
