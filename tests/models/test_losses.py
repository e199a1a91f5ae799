"""Losses as functions of logits and labels, against the formulas written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from headway.models.losses import balanced_softmax, contrast, log_prior

Z = torch.tensor([[1.0, -0.5, 2.0], [0.0, 0.3, -1.0]])
Y = torch.tensor([0, 2])


def test_log_prior_is_the_log_of_raw_counts() -> None:
    assert torch.allclose(log_prior(torch.tensor([1, 10, 100]), "floor1"), torch.tensor([0.0, 2.302585, 4.605170]))


@pytest.mark.parametrize(("absent", "offset"), [("floor1", 0.0), ("eps", math.log(1e-12)), ("mask", -math.inf)])
def test_absent_class_has_the_offset_of_D12(absent: str, offset: float) -> None:
    prior = log_prior(torch.tensor([4, 0, 2]), absent)
    assert float(prior[1]) == pytest.approx(offset, rel=1e-6)
    assert torch.allclose(prior[[0, 2]], torch.tensor([math.log(4), math.log(2)]))


def test_log_prior_of_large_counts_keeps_its_digits() -> None:
    # in float32 the count itself would be rounded to 16777216
    assert float(log_prior(torch.tensor([16777217]), "floor1").double()) == pytest.approx(math.log(16777217), rel=1e-7)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_balanced_softmax_is_the_formula_written_out(gamma: float) -> None:
    n = torch.tensor([4.0, 1.0, 2.0])
    # -log( n_y^gamma exp(z_y) / sum_c n_c^gamma exp(z_c) ), mean over the batch
    each = [-math.log(n[y] ** gamma * math.exp(z[y]) / sum(n**gamma * z.exp())) for z, y in zip(Z, Y, strict=True)]
    found = balanced_softmax(Z, Y, log_prior(n, "floor1"), gamma)
    assert float(found) == pytest.approx(sum(each) / 2, rel=1e-6)


def test_balanced_softmax_by_hand() -> None:
    # z = 0 and n = (3, 1): -log 3/4 for class 0, -log 1/4 for class 1
    prior = log_prior(torch.tensor([3, 1]), "floor1")
    for y, p in ((0, 3 / 4), (1, 1 / 4)):
        loss = balanced_softmax(torch.zeros(1, 2), torch.tensor([y]), prior, 1.0)
        assert float(loss) == pytest.approx(-math.log(p), rel=1e-6)


def test_a_common_factor_of_the_counts_cancels_unless_a_class_is_floored() -> None:
    def loss(counts: list[int], absent: str) -> float:
        return float(balanced_softmax(Z, Y, log_prior(torch.tensor(counts), absent), 1.0))

    assert loss([4, 1, 2], "floor1") == pytest.approx(loss([40, 10, 20], "floor1"), rel=1e-6)
    assert loss([4, 0, 2], "mask") == pytest.approx(loss([40, 0, 20], "mask"), rel=1e-6)
    assert loss([4, 0, 2], "floor1") != pytest.approx(loss([40, 0, 20], "floor1"), rel=1e-3)


@pytest.mark.parametrize("absent", ["floor1", "eps", "mask"])
def test_balanced_softmax_with_an_absent_class_is_finite(absent: str) -> None:
    z = Z.clone().requires_grad_()
    loss = balanced_softmax(z, Y, log_prior(torch.tensor([4, 0, 2]), absent), 1.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    push = z.grad[:, 1]
    if absent == "mask":
        assert (push == 0).all()  # out of the denominator: not even a weak negative
    elif absent == "eps":
        assert (push > 0).all()
        assert push.max() < 1e-11
    else:
        assert push.min() > 1e-3  # offset log 1: still pushed away


@pytest.mark.parametrize("absent", ["floor1", "eps", "mask"])
def test_gamma_zero_is_plain_cross_entropy(absent: str) -> None:
    found = balanced_softmax(Z, Y, log_prior(torch.tensor([4, 0, 2]), absent), 0.0)
    assert torch.equal(found, F.cross_entropy(Z, Y))


def test_contrast_by_hand() -> None:
    # cos(h, near) = 0.6, cos(h, far) = 0, tau = 0.5: -log( e^1.2 / (e^1.2 + 1) )
    h, near, far = torch.tensor([[5.0, 0.0]]), torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, -7.0]])
    expected = -math.log(math.exp(1.2) / (math.exp(1.2) + 1))
    assert float(contrast(h, near, far, 0.5)) == pytest.approx(expected, rel=1e-6)
    assert float(contrast(h, far, near, 0.5)) == pytest.approx(expected + 1.2, rel=1e-6)


def test_contrast_is_the_mean_over_the_batch() -> None:
    h = torch.tensor([[5.0, 0.0], [1.0, 1.0]])
    near, far = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, -7.0], [0.0, 1.0]])
    first = contrast(h[:1], near[:1], far[:1], 0.5)
    # the second has equal cosines: log 2
    assert float(contrast(h, near, far, 0.5)) == pytest.approx((float(first) + math.log(2)) / 2, rel=1e-6)


def test_contrast_is_log_2_without_gradient_when_both_sides_agree() -> None:
    h = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    other = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    loss = contrast(h, other, other.clone(), 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2), rel=1e-6)
    assert torch.allclose(h.grad, torch.zeros(5, 4), atol=1e-8)


def test_a_small_temperature_sharpens_the_contrast() -> None:
    h, near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    for tau in (0.1, 0.5, 2.0):  # cosines 1 and 0: log(1 + e^(-1/tau))
        assert float(contrast(h, near, far, tau)) == pytest.approx(math.log1p(math.exp(-1 / tau)), rel=1e-3)
