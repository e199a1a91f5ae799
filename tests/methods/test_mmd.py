"""FedMMD: the maximum mean discrepancy between the local and the global features of a batch."""

from __future__ import annotations

import math

import pytest
import torch
from toy import OneWeight, batch_of, local_of, one_round, skewed, slope, task_of, two_clients, watching

from headway.methods import recipe as parse
from headway.methods.mmd import MMD
from headway.models.losses import mmd_squared
from headway.training import rounds


def naive(h: list[list[float]], g: list[list[float]]) -> float:
    """MMD^2 by loops over pairs and kernels."""
    both = [*h, *g]

    def gap(a: list[float], b: list[float]) -> float:
        return sum((i - j) ** 2 for i, j in zip(a, b, strict=True))

    s = sum(gap(a, b) for a in both for b in both) / (len(both) * (len(both) - 1)) + 1e-8  # over pairs of two

    def k(a: list[float], b: list[float]) -> float:
        return sum(math.exp(-gap(a, b) / (s * 2**i / 4)) for i in range(5))

    total = 0.0
    for i in range(len(h)):
        for j in range(len(h)):
            total += k(h[i], h[j]) + k(g[i], g[j]) - k(h[i], g[j]) - k(g[i], h[j])
    return total / len(h) ** 2


def test_equals_a_naive_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    h, g = torch.randn(5, 3, generator=rng), 1 + 2 * torch.randn(5, 3, generator=rng)
    assert float(mmd_squared(h, g)) == pytest.approx(naive(h.tolist(), g.tolist()), rel=1e-5)


def test_two_points_by_hand() -> None:
    # h = 0, g = 2: the one pair is 4 apart, s = 4; MMD^2 = 5 + 5 - 2 sum_i exp(-4 / (4 * 2^i / 4))
    expected = 10 - 2 * sum(math.exp(-4 / 2**i) for i in range(5))
    assert float(mmd_squared(torch.tensor([[0.0]]), torch.tensor([[2.0]]))) == pytest.approx(expected, rel=1e-5)


def test_equal_features_have_no_discrepancy_whatever_their_order() -> None:
    h = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 0.5]])
    assert float(mmd_squared(h, h)) == 0
    assert float(mmd_squared(h, h[[2, 0, 1]])) == pytest.approx(0, abs=1e-6)
    assert float(mmd_squared(torch.ones(3, 2), torch.ones(3, 2))) == 0  # and no division by zero


@pytest.mark.parametrize(("batch", "scale"), [(1, 10.0), (2, 1.0), (2, 10.0), (3, 10.0)])
def test_copies_of_one_sample_are_no_explosion(batch: int, scale: float) -> None:
    # no spread at all: s is 1e-8, and rounding divided by it must not become a gradient
    g = scale * torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).repeat(batch, 1)
    h = g.clone().requires_grad_()
    mmd_squared(h, g).backward()
    assert h.grad.abs().max().item() < 1e-2


def test_the_bandwidth_carries_no_gradient() -> None:
    # d/dh of sum_i -2 exp(-h^2/s_i) at h = 2, g = 0, with s_i held: 4 h/s_i exp(-h^2/s_i)
    h = torch.tensor([[2.0]], requires_grad=True)
    mmd_squared(h, torch.tensor([[0.0]])).backward()
    s = [4 * 2**i / 4 for i in range(5)]
    assert float(h.grad) == pytest.approx(sum(2 * 2 * 2 / si * math.exp(-4 / si) for si in s), rel=1e-4)


def test_penalty_is_lambda_times_the_discrepancy_to_the_received_model() -> None:
    # u = 1 as received, 3 now: features (3, 6) against (1, 2)
    task = task_of([1.0, 2.0], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0))
    local = local_of(task, "mmd")
    local = local.prepared(MMD().prepare(local))
    with torch.no_grad():
        local.net.body.u.fill_(3.0)
    value = MMD(weight=0.5).penalty(batch_of(local), local)
    assert value.item() == pytest.approx(0.5 * naive([[3.0], [6.0]], [[1.0], [2.0]]), rel=1e-5)
    value.backward()
    received = local.ready["glob"].net.body.u
    assert received.grad is None
    assert float(received) == 1.0


def test_the_first_step_of_a_round_is_fedavgs_and_the_second_is_pulled() -> None:
    # at w = w^t features agree and the penalty rests at its minimum
    _, one, _ = one_round("mmd(weight=10)+babu", two_clients(start=0.5))
    assert float(one[0].w["body.u"]) == pytest.approx(0.5 - 0.1 * slope(0.5, [2.0], 0), rel=1e-4)
    _, two, _ = one_round("mmd(weight=10)+babu", two_clients(start=0.5, epochs=2))
    _, plain, _ = one_round("fedavg+babu", two_clients(start=0.5, epochs=2))
    assert float(two[0].w["body.u"]) < float(plain[0].w["body.u"]) - 1e-3  # back towards 0.5
    assert float(plain[0].w["body.u"]) > 0.5


def test_the_teacher_is_the_model_of_this_round_and_stays_as_it_is() -> None:
    seen = []
    recipe = watching(lambda b, local: seen.append(local.of(MMD()).w0["body.u"].clone()), "mmd", "babu")
    task = two_clients(start=0.5, epochs=2)
    server, _, engine = one_round(recipe, task)
    received = rounds.cast_of(server, recipe).w["body.u"]
    seen.clear()
    one_round(recipe, task, server, engine)
    assert all(torch.equal(w0, received) for w0 in seen)
    assert len(seen) == 4


def test_features_of_the_teacher_are_in_eval_mode() -> None:
    local = local_of(skewed(2, train_size=60), "mmd")
    local.net.train()
    assert not any(module.training for module in MMD().prepare(local)["glob"].net.modules())
    assert MMD(weight=0.001) in parse("fedmmd(weight=0.001)").pieces
