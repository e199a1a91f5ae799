"""Sliced Wasserstein distances between Gaussians, by hand and against sorted samples."""

from __future__ import annotations

import math

import pytest
import torch
from toy import OneWeight, fixed, task_of

from headway.analysis.diagnostics.separability import (
    class_moments,
    directions,
    sliced_wasserstein,
    virtual_accuracy,
    with_spread,
)
from headway.base.tree import stream
from headway.methods import recipe as parse
from headway.models.moments import Moments


def gaussian(mean, cov, n: int = 11) -> Moments:
    cov = torch.tensor(cov, dtype=torch.float64)
    return Moments(n, torch.tensor(mean, dtype=torch.float64), cov * (n - 1))


def sampled_wasserstein(a: torch.Tensor, b: torch.Tensor, theta: torch.Tensor) -> float:
    """The same between two equally large sets of vectors [n, d], without any Gaussian: sorted projections."""
    gap = (a.double() @ theta.T).sort(0).values - (b.double() @ theta.T).sort(0).values  # [n, L]
    return float(gap.square().mean().sqrt())


def test_one_dimension_by_hand() -> None:
    # N(0, 1) and N(3, 25): sqrt(3^2 + (1 - 5)^2) = 5
    found = sliced_wasserstein([gaussian([0.0], [[1.0]]), gaussian([3.0], [[25.0]])], torch.ones(4, 1).double())
    assert found.tolist() == [[0, 5], [5, 0]]


def test_directions_along_the_axes_by_hand() -> None:
    # means (0, 0) and (1, 2), same covariance: squares 1 and 4, mean 2.5
    same = [[2.0, 0.0], [0.0, 3.0]]
    found = sliced_wasserstein([gaussian([0.0, 0.0], same), gaussian([1.0, 2.0], same)], torch.eye(2).double())
    assert found[0, 1].item() == pytest.approx(math.sqrt(2.5))


def test_directions_are_unit_named_and_uniform() -> None:
    theta = directions(5, 200, stream(3, "sliced"))
    assert theta.norm(dim=1).tolist() == pytest.approx([1.0] * 200)
    assert torch.equal(theta, directions(5, 200, stream(3, "sliced")))
    assert theta.square().mean(0).tolist() == pytest.approx([0.2] * 5, abs=0.04)


def test_the_closed_form_is_what_samples_give() -> None:
    rng = stream(0, "samples")
    a = gaussian([0.0, 0.0, 0.0], [[1.0, 0.5, 0.0], [0.5, 2.0, 0.0], [0.0, 0.0, 0.1]])
    b = gaussian([1.0, -2.0, 0.5], [[3.0, 0.0, 1.0], [0.0, 0.5, 0.0], [1.0, 0.0, 2.0]])
    theta = directions(3, 200, rng)
    closed = sliced_wasserstein([a, b], theta)[0, 1].item()
    assert sampled_wasserstein(a.sample(20_000, rng), b.sample(20_000, rng), theta) == pytest.approx(closed, rel=0.02)


def test_a_class_with_one_sample_borrows_a_covariance() -> None:
    lone = Moments.of(torch.tensor([[5.0, 5.0]]))
    known = {0: gaussian([0.0, 0.0], [[2.0, 0.0], [0.0, 4.0]]), 1: gaussian([0.0, 0.0], [[4.0, 0.0], [0.0, 0.0]])}
    found = with_spread(known | {2: lone})
    assert found[2].cov.tolist() == [[3.0, 0.0], [0.0, 2.0]]
    assert found[2].mean.tolist() == [5.0, 5.0]
    assert with_spread({0: lone})[0].cov.abs().sum() == 0


def test_virtual_accuracy_by_hand() -> None:
    # z = (h, -h): positive features are class 0. Drawn: 1, 2, -1 of class 0 and -3 of class 1: three of four
    task = task_of([1.0], [0], [[0]], body=lambda: OneWeight(1.0), first=fixed([[1.0], [-1.0]]), bias=False)
    drawn = {0: torch.tensor([[1.0], [2.0], [-1.0]]), 1: torch.tensor([[-3.0]])}
    assert virtual_accuracy(task.net(parse("fedavg")), drawn) == 0.75


@pytest.mark.parametrize("rows", [1, 5, 1000])
def test_moments_of_classes_are_the_pooled_ones(rows: int) -> None:
    rng = stream("clients")
    parts = [(torch.randn(n, 3, generator=rng) + 1e3, torch.arange(n) % 3 * 2) for n in (4, 1, 0, 7, 2)]
    found = class_moments(parts, rows)
    assert list(found) == [0, 2, 4]
    for c, m in found.items():
        wanted = Moments.pool([Moments.of(e[y == c]) for e, y in parts if (y == c).any()])
        assert m.n == wanted.n
        assert torch.allclose(m.mean, wanted.mean, rtol=1e-12)
        assert torch.allclose(m.scatter, wanted.scatter, rtol=1e-9)


def test_moments_of_two_clients_by_hand() -> None:
    # class 0: 1 and 3 of one client, 8 of another: mean 4, scatter 9 + 1 + 16 = 26
    parts = [(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 0])), (torch.tensor([[8.0]]), torch.tensor([0]))]
    found = class_moments(parts)[0]
    assert (found.n, found.mean.item(), found.scatter.item()) == (3, 4.0, pytest.approx(26.0))
