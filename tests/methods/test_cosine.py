"""The cosine classifier: the sum of fn and clsnorm under a scale."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, assert_same, fixed, one_round, skewed, task_of

from headway.methods import recipe as parse


def test_logits_by_hand() -> None:
    # cos((3, 4), (1, 0)) = 0.6, cos((3, 4), (0, -2)) = -0.8, times 10
    task = task_of([[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(5.0, 2), first=fixed([[1.0, 0.0], [0.0, -2.0]]))
    assert torch.allclose(task.net(parse("cosine"))(torch.tensor([[3.0, 4.0]])), torch.tensor([[6.0, -8.0]]))


@pytest.mark.parametrize("tau", [1.0, 4.0])
def test_logits_stay_within_tau_and_reach_it(tau: float) -> None:
    task = skewed(2, train_size=60)
    net = task.net(parse(f"cosine(tau={tau})"))
    z = net(task.data[0][0]).abs()
    assert float(z.detach().max()) <= tau
    along = net.head(3 * net.head.weight.detach())  # features along the class vectors
    assert torch.allclose(along.diagonal(), torch.full((10,), tau), atol=1e-5)


def test_equals_fn_and_clsnorm_at_tau_one() -> None:
    task = skewed(3, train_size=90, momentum=0.9, weight_decay=1e-3)
    (cosine, _, _), (both, _, _) = one_round("cosine(tau=1)", task), one_round("fn+clsnorm", task)
    assert_same(cosine.w, both.w)


def test_the_scale_is_fixed_and_the_classifier_trains() -> None:
    task = skewed(3, train_size=90, weight_decay=0.1)
    server, _, _ = one_round("cosine", task)
    assert "head.scale" not in server.w
    assert not torch.equal(server.w["head.weight"], task.first_params(parse("cosine"))["head.weight"])
