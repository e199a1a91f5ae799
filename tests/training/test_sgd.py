"""SGD below the vocabulary: torch's arithmetic, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.training.sgd import SGD, ParameterGroup


def pair(momentum: float, decay: float):
    """The same two parameters twice, under torch's optimiser and under ours."""
    start = [torch.randn(3, 4, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    theirs, mine = ([nn.Parameter(v.clone()) for v in start] for _ in range(2))
    torch_sgd = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=decay, fused=True)
    group = ParameterGroup(0.1, momentum, decay, {str(i): p for i, p in enumerate(mine)})
    return theirs, mine, torch_sgd, SGD([group])


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.9, 0.01), (0.0, 0.01)])
def test_steps_are_torchs(momentum, decay):
    theirs, mine, torch_sgd, sgd = pair(momentum, decay)
    for step in range(4):
        g = torch.randn(3, 4, generator=torch.Generator().manual_seed(9 + step))
        for p in theirs:
            p.grad = g.clone()
        torch_sgd.step()
        sgd.step([g.clone(), g.clone()])
        for a, b in zip(theirs, mine, strict=True):
            assert torch.equal(a, b)


def test_a_parameter_without_gradient_rests_and_begins_later():
    # lr 0.1, momentum 0.5, g = 1: w = -0.1, then m = 1.5, w = -0.25; the other begins at the second step: -0.1
    a, b = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    sgd = SGD([ParameterGroup(0.1, 0.5, 0.0, {"a": a, "b": b})])
    sgd.step([torch.ones(1), None])
    assert (a.item(), b.item()) == (pytest.approx(-0.1), 0.0)
    sgd.step([torch.ones(1), torch.ones(1)])
    assert (a.item(), b.item()) == (pytest.approx(-0.25), pytest.approx(-0.1))
    assert sgd.buffers()["a"].item() == pytest.approx(1.5)


def test_groups_step_at_their_own_rates():
    a, b = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    sgd = SGD([ParameterGroup(0.1, 0.0, 0.0, {"a": a}), ParameterGroup(1.0, 0.0, 0.0, {"b": b})])
    a.grad, b.grad = torch.ones(1), torch.ones(1)
    sgd.step()
    assert (a.item(), b.item()) == (pytest.approx(-0.1), -1.0)


def test_gradients_that_lie_otherwise_in_memory_than_their_parameters():
    """A weight used transposed has a transposed gradient; one that is summed has a single number for all."""
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))

    def loss(w, v):
        return (x @ w.t()).square().sum() + v.sum() * 3

    theirs, mine = ([nn.Parameter(torch.arange(6.0).view(2, 3)), nn.Parameter(torch.ones(4))] for _ in range(2))
    torch_sgd = torch.optim.SGD(theirs, lr=0.01, momentum=0.9, weight_decay=0.1, fused=True)
    sgd = SGD([ParameterGroup(0.01, 0.9, 0.1, {str(i): p for i, p in enumerate(mine)})])
    for _ in range(3):
        torch_sgd.zero_grad()
        loss(*theirs).backward()
        torch_sgd.step()
        sgd.step(torch.autograd.grad(loss(*mine), mine))
    for a, b in zip(theirs, mine, strict=True):
        assert torch.equal(a, b)


def test_parameters_with_one_gradient_between_them_keep_momentum_of_their_own():
    # lr 1, momentum 0.5, g = 1 for both at first, then 1 and none: w = -1, m = 1.5 and w = -2.5; the other rests at -1
    a, b = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    sgd = SGD([ParameterGroup(1.0, 0.5, 0.0, {"a": a, "b": b})])
    g = torch.ones(2)
    sgd.step([g, g])
    sgd.step([torch.ones(2), None])
    assert (a.tolist(), b.tolist()) == ([-2.5, -2.5], [-1.0, -1.0])
    assert (sgd.buffers()["a"].tolist(), sgd.buffers()["b"].tolist()) == ([1.5, 1.5], [1.0, 1.0])
