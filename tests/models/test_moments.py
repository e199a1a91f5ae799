"""Counts, means and covariances pool exactly, whatever the split; samples have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.tree import stream
from headway.models.moments import Moments


def features(n: int, d: int = 3, seed: int = 0) -> torch.Tensor:
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, -1.0], [0.3, 0.0, 0.1]])[:d, :d]
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) @ mix + torch.arange(d) * 10.0


def pooled(e: torch.Tensor, sizes: list[int]) -> Moments:
    """The pool of the moments of consecutive parts; an empty part sends nothing."""
    return Moments.pool([Moments.of(part) for part in e.split(sizes) if len(part)])


def assert_moments_of(m: Moments, e: torch.Tensor) -> None:
    assert m.n == len(e)
    np.testing.assert_allclose(m.mean, e.double().mean(0), rtol=1e-12)
    expected = np.cov(e.double().numpy(), rowvar=False, ddof=1) if len(e) > 1 else np.zeros((e.shape[1],) * 2)
    np.testing.assert_allclose(m.cov, expected, rtol=1e-9, atol=1e-12)


def test_eq2_by_hand() -> None:
    # (0, 0), (2, 4), (4, 2): mean (2, 2); deviations (-2, -2), (0, 2), (2, 0): scatter [[8, 4], [4, 8]], over 2
    m = Moments.of(torch.tensor([[0.0, 0.0], [2.0, 4.0], [4.0, 2.0]]))
    assert m.n == 3
    assert m.mean.tolist() == [2.0, 2.0]
    assert m.cov.tolist() == [[4.0, 2.0], [2.0, 4.0]]


def test_covariance_divides_by_n_minus_one() -> None:
    assert_moments_of(Moments.of(features(7)), features(7))


def test_a_single_vector_has_no_covariance_and_no_nan() -> None:
    m = Moments.of(torch.tensor([[3.0, 4.0]]))
    assert m.n == 1
    assert m.mean.tolist() == [3.0, 4.0]
    assert m.cov.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_eq3_mean_equals_pooled_by_hand() -> None:
    # n = 1 at (0, 3), n = 2 at mean (3, 0): (1 * 0 + 2 * 3) / 3 = 2, (1 * 3 + 0) / 3 = 1
    parts = [Moments.of(torch.tensor([[0.0, 3.0]])), Moments.of(torch.tensor([[2.0, 0.0], [4.0, 0.0]]))]
    assert Moments.pool(parts).mean.tolist() == [2.0, 1.0]


def test_eq4_covariance_equals_pooled_by_hand() -> None:
    # deviations from (2, 1): (-2, 2), (0, -1), (2, -1): scatter [[8, -6], [-6, 6]], over 2
    parts = [Moments.of(torch.tensor([[0.0, 3.0]])), Moments.of(torch.tensor([[2.0, 0.0], [4.0, 0.0]]))]
    assert Moments.pool(parts).cov.tolist() == [[4.0, -3.0], [-3.0, 3.0]]


@pytest.mark.parametrize("sizes", [[12], [6, 6], [1, 11], [1] * 12, [0, 5, 0, 7], [2, 3, 7, 0], [1, 1, 10]], ids=str)
def test_eq3_eq4_equal_the_pooled_moments_for_any_split(sizes: list[int]) -> None:
    assert_moments_of(pooled(features(12), sizes), features(12))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 1), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_split_of_any_data_pools_exactly(sizes: list[int], seed: int) -> None:
    e = features(sum(sizes), seed=seed)
    assert_moments_of(pooled(e, sizes), e)


def test_eq4_as_printed_agrees() -> None:
    e = features(9)
    parts = [Moments.of(p) for p in e.split([1, 3, 5])]
    n, mu = 9, e.double().mean(0)
    printed = (
        sum((p.n - 1) / (n - 1) * p.cov for p in parts)
        + sum(p.n / (n - 1) * torch.outer(p.mean, p.mean) for p in parts)
        - n / (n - 1) * torch.outer(mu, mu)
    )
    assert torch.allclose(Moments.pool(parts).cov, printed, rtol=1e-9, atol=1e-9)


def test_biased_covariances_would_not_pool() -> None:
    # the known slip: dividing by N on the clients and weighing by N - 1 on the server
    e = features(9)
    biased = sum((len(p) - 1) / 8 * torch.from_numpy(np.cov(p.double().T, ddof=0)) for p in e.split([4, 5]))
    means = [p.double().mean(0) for p in e.split([4, 5])]
    between = sum(len(p) / 8 * torch.outer(m - e.double().mean(0), m - e.double().mean(0))
                  for p, m in zip(e.split([4, 5]), means, strict=True))  # fmt: skip
    found = pooled(e, [4, 5]).cov
    assert not torch.allclose(found, biased + between, rtol=1e-2)
    np.testing.assert_allclose(found, np.cov(e.double().T, ddof=1), rtol=1e-9)


def test_far_from_the_origin_nothing_cancels() -> None:
    e = features(20).double() + 1e6
    np.testing.assert_allclose(pooled(e, [3, 7, 10]).cov, np.cov((e - 1e6).T, ddof=1), rtol=1e-7)


def test_pooling_is_associative() -> None:
    a, b, c = (Moments.of(p) for p in features(9).split([2, 3, 4]))
    left, right = Moments.pool([Moments.pool([a, b]), c]), Moments.pool([a, Moments.pool([b, c])])
    assert left.n == right.n == 9
    assert torch.allclose(left.mean, right.mean)
    assert torch.allclose(left.cov, right.cov)


def test_borrowed_covariance_leaves_the_mean_and_the_count() -> None:
    cov = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    for e in (torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0], [2.0, 4.0], [4.0, 2.0]])):
        m = Moments.of(e)
        lent = m.with_cov(cov)
        assert lent.n == m.n
        assert torch.equal(lent.mean, m.mean)
        assert torch.allclose(lent.cov, cov)


def test_samples_converge_to_the_mean_and_covariance() -> None:
    m = Moments.of(features(50))
    e = m.sample(40_000, stream("draw"))
    assert e.dtype == torch.float32
    assert e.shape == (40_000, 3)
    spread = m.cov.diagonal().sqrt()
    assert ((e.double().mean(0) - m.mean).abs() < 4 * spread / 200).all()  # 4 standard errors
    scale = torch.outer(spread, spread)
    assert ((torch.from_numpy(np.cov(e.double().T)) - m.cov).abs() < 0.04 * scale).all()


def test_samples_of_a_rank_deficient_covariance_stay_in_its_plane() -> None:
    # three points in 3-d span a plane through their mean; so do the samples
    e = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # plane x + y + z = 1
    drawn = Moments.of(e).sample(500, stream("plane"))
    assert torch.allclose(drawn.sum(1), torch.ones(500), atol=1e-5)
    assert drawn.std(0).min() > 0.3


def test_samples_of_a_single_vector_are_that_vector() -> None:
    assert torch.equal(Moments.of(torch.tensor([[3.0, 4.0]])).sample(5, stream("one")), torch.tensor([[3.0, 4.0]] * 5))


def test_rounding_below_zero_does_not_make_nan() -> None:
    m = Moments(3, torch.zeros(2, dtype=torch.float64), torch.tensor([[1.0, 0.0], [0.0, -1e-18]], dtype=torch.float64))
    assert torch.isfinite(m.sample(10, stream("neg"))).all()


def test_the_same_stream_draws_the_same_samples() -> None:
    m = Moments.of(features(9))
    assert torch.equal(m.sample(4, stream("a")), m.sample(4, stream("a")))
    assert not torch.equal(m.sample(4, stream("a")), m.sample(4, stream("b")))
