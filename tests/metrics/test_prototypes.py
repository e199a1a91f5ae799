"""Prototype consistency: pairs of clients that own a class."""

from __future__ import annotations

import math

import pytest
import torch

from headway.metrics.local_statistics import LocalStatistics
from headway.metrics.prototypes import class_consistency, classifier_cosines, consistency_figures

NAN = float("nan")
X, Y, XY, NONE = [1.0, 0.0], [0.0, 3.0], [2.0, 2.0], [NAN, NAN]


def test_by_hand() -> None:
    # class 0: x, y, xy: cosines 0, 1/sqrt(2), 1/sqrt(2); class 1: one owner; class 2: two that agree
    clients = [torch.tensor([X, NONE, Y]), torch.tensor([Y, X, NONE]), torch.tensor([XY, NONE, Y])]
    found = class_consistency(clients)
    assert found[0] == pytest.approx(math.sqrt(2) / 3)
    assert found[1] is None
    assert found[2] == pytest.approx(1)


def test_figures_average_over_classes_with_two_owners() -> None:
    protos = [torch.tensor([X, NONE, Y]), torch.tensor([Y, X, Y])]
    rows = [torch.tensor([X, Y, X]), torch.tensor([X, Y, [-1.0, 0.0]])]
    zero = torch.zeros(3)
    found = consistency_figures([LocalStatistics(k, zero, rows[k], protos[k], protos[k], zero, zero) for k in (0, 1)])
    assert found["consistency"] == pytest.approx((0 + 1) / 2)
    assert found["classifier_cosine"] == pytest.approx((1 + 9 - 1) / 11)  # (1,0,0,3,1,0).(1,0,0,3,-1,0) / 11


def test_nobody_shares_a_class() -> None:
    assert class_consistency([torch.tensor([X, NONE]), torch.tensor([NONE, Y])]) == [None, None]


def test_classifiers_by_hand() -> None:
    # flattened (1, 0, 0, 1) and (0, 1, 1, 0) are orthogonal; a multiple is the same direction
    eye = torch.eye(2)
    found = classifier_cosines([eye, eye.flip(0), 5 * eye])
    assert found[0].tolist() == pytest.approx([1, 0, 1])
