"""How many steps a phase has, and what the gradients of a round weigh in the parameters it ends with."""

from __future__ import annotations

import math

import pytest
import torch
from phases import at_rate, scheduled, slower_head, table
from torch import nn
from toy import Normed, two_clients

from headway.base.names import in_body
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.methods import recipe as parse
from headway.training.step_counts import batch_plan, effective_steps, gradient_weights


def test_proximal_steps_under_momentum_follow_the_recurrence():
    # rho 0.5, q 0.1, unit gradient: m = 1, d = 1; m = 0.5 + 1 - 0.1 = 1.4, d = 2.4; m = 0.7 + 1 - 0.24 = 1.46, d = 3.86
    assert effective_steps(3, 0.5, 0.1) == pytest.approx(3.86)
    assert effective_steps(3, 0.0, 0.1) == pytest.approx((1 - 0.9**3) / 0.1)  # plain SGD: the closed form
    assert effective_steps(3, 0.5, 1e-12) == pytest.approx(effective_steps(3, 0.5))


@pytest.mark.parametrize(
    ("n", "size", "plain", "normed", "lone"),
    [
        (10, 4, 3, 3, False),  # 4 + 4 + 2: the last incomplete batch is kept
        (9, 4, 3, 2, False),  # 4 + 4 + 1: BatchNorm cannot use the last one
        (5, 4, 2, 1, False),
        (8, 4, 2, 2, False),
        (3, 32, 1, 1, False),  # smaller than a batch
        (2, 32, 1, 1, False),
        (1, 32, 1, 1, True),  # one example in all: it trains
        (3, 1, 3, 3, True),  # batches of one by request
    ],
)
def test_batch_plan(n: int, size: int, plain: int, normed: int, lone: bool) -> None:
    task = table(n, batch_size=size)
    net = task.net(parse("fedavg"))
    plan = batch_plan(task, net, Phase(3), n)
    assert (plan.batches, plan.steps, plan.lone_sample) == (plain, 3 * plain, False)
    task = table(n, batch_size=size, body=Normed)
    plan = batch_plan(task, task.net(parse("fedavg")), Phase(3), n)
    assert (plan.batches, plan.steps, plan.lone_sample) == (normed, 3 * normed, lone)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 40])
def test_effective_steps_equal_a_simulated_sgd(momentum: float, steps: int) -> None:
    p = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([p], lr=0.1, momentum=momentum)
    for _ in range(steps):
        p.grad = torch.ones((), dtype=torch.float64)
        sgd.step()
    assert effective_steps(steps, momentum) == pytest.approx(-p.item() / 0.1, rel=1e-12)


def test_effective_steps_by_hand() -> None:
    # rho = 1/2, 3 steps: buffers 1, 3/2, 7/4, together 4.25
    assert effective_steps(3, 0.5) == pytest.approx(4.25)
    assert effective_steps(3, 0.0) == 3
    assert effective_steps(0, 0.9) == 0


def k_eff(recipe: Recipe, task) -> dict[str, float]:
    net, phases = task.net(recipe), recipe.local_phases(task.epochs)
    plans = [batch_plan(task, net, phase, 2) for phase in phases]
    return {k: float(v) for k, v in gradient_weights(task, net, phases, plans, recipe, task.lr(0)).items()}


def test_gradient_weights_follow_the_phases() -> None:
    task = two_clients(batch_size=1, epochs=2, lr=0.1)  # two batches an epoch
    assert k_eff(parse("fedavg"), task) == {"body.u": 4, "head.weight": 4}
    assert k_eff(parse("fedrep(head_epochs=5)"), task) == {"body.u": 4}  # the head is personal
    assert k_eff(parse("fedtc"), task) == {"body.u": 4, "head.received.weight": math.inf}  # no phase trains it
    slow = scheduled(Phase(2, step=slower_head(0.5)))
    assert k_eff(slow, task) == {"body.u": 4, "head.weight": 2}
    two = scheduled(Phase(1, trains=in_body, step=at_rate(0.2)), Phase(3))  # 2 steps at twice the rate, then 6
    assert k_eff(two, task) == {"body.u": pytest.approx(10), "head.weight": 6}
    rho = two_clients(batch_size=1, epochs=1, momentum=0.5)
    assert k_eff(parse("fedavg"), rho) == {"body.u": 2.5, "head.weight": 2.5}  # buffers 1 and 3/2
