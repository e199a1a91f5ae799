"""Arrived: the round as a hook on the server sees it."""

from __future__ import annotations

import torch

from headway.base.tree import Tree
from headway.core.arrived import Arrived
from headway.core.state import Report
from headway.methods.prox import Prox
from headway.methods.scaffold import Scaffold


def t(value: float) -> Tree:
    return Tree({"u": torch.tensor(value)})


REPORTS = [
    Report(0, 1, 1, t(2.0), Tree(), {"scaffold": {"delta_c": 5}}),
    Report(1, 3, 1, t(6.0), Tree(), {"scaffold": {"delta_c": 7}}),
]
ROUND = Arrived(t(1.0), REPORTS, [0.25, 0.75], num_clients=4, round=2, lr=0.1, kept={"scaffold": {"c": 9}})


def test_the_mean_is_by_the_rounds_weights_or_by_given_ones() -> None:
    assert float(ROUND.mean()["u"]) == 0.25 * 2 + 0.75 * 6
    assert ROUND.uniform == [0.5, 0.5]
    assert float(ROUND.mean(ROUND.uniform)["u"]) == 4.0


def test_a_piece_sees_its_own_notes_and_messages_alone() -> None:
    mine = ROUND.of(Scaffold())
    assert mine.kept == {"c": 9}
    assert [r.sent for r in mine.reports] == [{"delta_c": 5}, {"delta_c": 7}]
    assert [r.w for r in mine.reports] == [r.w for r in REPORTS]
    other = ROUND.of(Prox())
    assert other.kept == {}
    assert [r.sent for r in other.reports] == [{}, {}]


def test_before_the_aggregation_there_are_no_new_parameters() -> None:
    assert ROUND.w_new == Tree()
