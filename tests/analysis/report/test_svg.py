"""Axes of the charts."""

from __future__ import annotations

import pytest

from headway.analysis.report import svg


@pytest.mark.parametrize(
    ("lo", "hi", "wanted"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (0, 20, [0, 5, 10, 15, 20]), (0.1, 0.35, [0.1, 0.15, 0.2, 0.25, 0.3, 0.35])],
)
def test_ticks_are_round_numbers(lo, hi, wanted):
    assert svg.ticks(lo, hi, 5) == pytest.approx(wanted)


def test_logarithmic_axes():
    assert svg.log_ticks(1, 20) == [1, 2, 5, 10, 20]
    axis = svg.Axis(1, 100, 0, 200, log=True)
    assert (axis.at(1), axis.at(10), axis.at(100)) == (0, 100, 200)
