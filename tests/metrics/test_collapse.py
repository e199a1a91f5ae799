"""Neural collapse: zero on a simplex, and the textbook numbers where it is not."""

from __future__ import annotations

import math

import pytest
import torch

from headway.metrics.collapse import collapse_error, collapse_figures, within_class_covariance
from headway.metrics.geometry import class_means
from headway.models.heads import simplex_etf

ETF = simplex_etf(7, 5, torch.Generator().manual_seed(1)).double()  # [5, 7]


def test_a_simplex_has_collapsed() -> None:
    y = torch.arange(5).repeat(3)
    found = collapse_figures(4 * ETF[y], y, ETF)
    for name in ("error", "nc1", "nc1_traces", "nc2_angles", "nc2_lengths", "nc3"):
        assert found[name] == pytest.approx(0, abs=1e-6), name
    assert found["nc3_cosine"] == pytest.approx(1)


def test_orthogonal_prototypes() -> None:
    # all cosines 0 and C = 3: (0 + 1/2)^2 = 1/4. Centred, the three stand as a simplex.
    y = torch.arange(3)
    found = collapse_figures(torch.eye(3), y, torch.eye(3))
    assert found["error"] == pytest.approx(0.25)
    assert found["nc2_angles"] == pytest.approx(0, abs=1e-12)
    assert found["nc2_lengths"] == pytest.approx(0, abs=1e-12)


def test_nc1_by_hand() -> None:
    # class 0: 0 and 2, mean 1; class 1: -2 and 0, mean -1: Sigma_W = 1, h_G = 0, Sigma_B = 1; NC1 = 1 * 1 / 2
    h, y = torch.tensor([[0.0], [2.0], [-2.0], [0.0]]), torch.tensor([0, 0, 1, 1])
    found = collapse_figures(h, y, torch.tensor([[1.0], [-1.0]]))
    assert found["nc1"] == pytest.approx(0.5)
    assert found["nc1_traces"] == pytest.approx(1.0)
    assert found["error"] == found["nc2_angles"] == pytest.approx(0)  # cos = -1 = -1/(C-1)
    assert found["nc3"] == pytest.approx(0, abs=1e-12)


def test_nc1_ignores_directions_that_tell_classes_nothing() -> None:
    # the second feature varies within classes only: it is in the null space of Sigma_B, and in the traces
    h = torch.tensor([[0.0, 3.0], [2.0, -3.0], [-2.0, 3.0], [0.0, -3.0]])
    found = collapse_figures(h, torch.tensor([0, 0, 1, 1]), torch.zeros(2, 2))
    assert found["nc1"] == pytest.approx(0.5)
    assert found["nc1_traces"] == pytest.approx((1 + 9) / 1)


def test_nc2_lengths_and_nc3_by_hand() -> None:
    # means 3 and -1 around h_G = 1: lengths 2 and 2; H/|H| = (1, -1)/sqrt(2), and W = (1, 1) is (1, 1)/sqrt(2)
    h, y = torch.tensor([[3.0], [-1.0]]), torch.tensor([0, 1])
    found = collapse_figures(h, y, torch.tensor([[1.0], [1.0]]))
    assert found["nc2_lengths"] == pytest.approx(0)
    assert found["nc3"] == pytest.approx(math.sqrt(2))  # (0, 2/sqrt(2))
    assert found["nc3_cosine"] == pytest.approx(0, abs=1e-12)  # 1 and -1


def test_within_weighs_classes_alike() -> None:
    # class 0 has variance 1 (two samples), class 1 variance 0 (four samples): 1/2 and not 2/6
    h = torch.tensor([[0.0], [2.0], [5.0], [5.0], [5.0], [5.0]])
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    assert within_class_covariance(h, y, class_means(h, y, 2)).item() == pytest.approx(0.5)


def test_absent_classes_take_no_part() -> None:
    y = torch.tensor([0, 1, 3, 4])
    found = collapse_figures(ETF[y], y, ETF)
    assert found["error"] == pytest.approx(0, abs=1e-12)
    assert all(value is not None and math.isfinite(value) for value in found.values())


def test_one_present_class_is_unknown_and_no_error() -> None:
    found = collapse_figures(torch.ones(3, 2), torch.zeros(3, dtype=torch.long), torch.eye(2))
    assert set(found.values()) == {None}


def test_raw_features_before_a_projection_have_no_nc3() -> None:
    found = collapse_figures(torch.eye(3), torch.arange(3), torch.zeros(3, 2))
    assert found["nc3"] is found["nc3_cosine"] is None
    assert found["nc1"] == pytest.approx(0)


def test_the_error_is_not_centred() -> None:
    # a common shift brings all cosines near one: (1 + 1/4)^2 for five classes
    assert collapse_error(ETF + 1e4) == pytest.approx(1.25**2, rel=1e-3)


def test_centred_means_of_the_classes_that_are_there() -> None:
    """Classes 0 and 2 of 3 are in the test set, at (1, 1) and (3, 1): centred (-1, 0) and (1, 0), cosine -1.

    Two vertices of a simplex stand at -1 / (2 - 1) = -1, not at the -1/2 of three.
    """
    h, y = torch.tensor([[1.0, 1.0], [1.0, 1.0], [3.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 0, 2, 2])
    found = collapse_figures(h, y, torch.eye(3)[:, :2])
    assert found["nc2_angles"] == pytest.approx(0)
    # not centred, (1, 1) and (3, 1) have cosine 4 / sqrt(20), and the classifier has three classes: target -1/2
    assert found["error"] == pytest.approx((4 / 20**0.5 + 0.5) ** 2)


def test_a_single_class_has_no_angles() -> None:
    found = collapse_figures(torch.tensor([[1.0, 1.0], [2.0, 1.0]]), torch.tensor([1, 1]), torch.eye(2))
    assert found["nc2_angles"] is None


def test_the_error_keeps_the_classifier_s_simplex_when_classes_are_absent() -> None:
    """Prototypes on the vectors of a simplex of five have no error, whichever of the five are in the test set."""
    assert collapse_error(ETF) == pytest.approx(0, abs=1e-12)
    some = ETF.clone()
    some[1:3] = torch.nan
    assert collapse_error(some) == pytest.approx(0, abs=1e-12)
