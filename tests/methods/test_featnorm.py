"""FedFR: the norm of the features, not its square."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, batch_of, local_of, one_round, slope, task_of, two_clients

from headway.methods.featnorm import FeatNorm


def test_eq1_penalty_by_hand() -> None:
    # ||(3, 4)|| = 5 and ||(0, 2)|| = 2, mean 3.5, mu = 0.2: 0.7; squared it would be 0.2 * 14.5
    task = task_of([[3.0, 4.0], [0.0, 2.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2))
    local = local_of(task, "featnorm")
    assert FeatNorm(mu=0.2).penalty(batch_of(local), local).item() == pytest.approx(0.7)


def test_the_pull_does_not_grow_with_the_norm() -> None:
    # d ||u x|| / du = ||x||, whatever u
    slopes = []
    for u in (1.0, 10.0):
        task = task_of([[3.0, 4.0]], [0], [[0]], body=lambda u=u: OneWeight(u, 2))
        local = local_of(task, "featnorm")
        FeatNorm(mu=1.0).penalty(batch_of(local), local).backward()
        slopes.append(float(local.net.body.u.grad))
    assert slopes == pytest.approx([5.0, 5.0])


def test_a_round_by_hand() -> None:
    # dL/du = CE' + mu mean |x| sign(u)
    _, reports, _ = one_round("featnorm(mu=0.5)+babu", two_clients(start=0.5))
    ends = [
        0.5 - 0.1 * (slope(0.5, [2.0], 0) + 0.5 * 2.0),
        0.5 - 0.1 * (slope(0.5, [1.0, 2.0], 1) + 0.5 * 1.5),
    ]
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(ends, rel=1e-5)


def test_raw_features_are_meant_also_where_the_head_normalises_them() -> None:
    task = task_of([[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(1.0, 2))
    local = local_of(task, "fn+featnorm")
    assert FeatNorm(mu=1.0).penalty(batch_of(local), local).item() == pytest.approx(5.0)


def test_a_dead_feature_has_no_gradient_and_no_nan() -> None:
    task = task_of([[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(0.0, 2))
    local = local_of(task, "featnorm")
    FeatNorm(mu=1.0).penalty(batch_of(local), local).backward()
    assert torch.isfinite(local.net.body.u.grad)
