"""SGD of perceptrons in C++: a step by hand, torch's numbers, any number of threads."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.models.native import mlp
from headway.models.native.build import compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason="native code is built by a C++ compiler")


def rows(values: torch.Tensor) -> torch.Tensor:
    """The same rows with memory after them."""
    memory = torch.zeros(values.numel() + mlp.PADDING)
    memory[: values.numel()] = values.reshape(-1)
    return memory[: values.numel()].view(values.shape)


def test_two_steps_by_hand():
    """One input, two classes, no hidden layer: w = (0, 0), b = (0, 0), both samples x = 2 of class 0, batch 1.

    p = 1/2 each: gradients of w (-1, 1), of b (-1/2, 1/2). Rate 0.1, momentum 0.5, decay 0: w = (0.1, -0.1),
    b = (0.05, -0.05). Then z = (0.25, -0.25), p_0 = 1 / (1 + exp(-0.5)).
    """
    move = mlp.Move(0.1, 0.5, 0.0)
    layer = mlp.Layer(1, 2, 0, 2, move, move)
    w, x, y = rows(torch.zeros(1, 4)), torch.tensor([[2.0], [2.0]]), torch.tensor([0, 0])
    losses = mlp.train([layer], w, None, x, y, torch.tensor([2]), torch.tensor([0, 1]), 1, 1)
    q = 1 - 1 / (1 + torch.exp(torch.tensor(-0.5)))  # 1 - p_0
    speed_w, speed_b = 0.5 * 1 + 2 * q, 0.5 * 0.5 + q  # of class 0, towards larger values
    expected = [0.1 + 0.1 * speed_w, -0.1 - 0.1 * speed_w, 0.05 + 0.1 * speed_b, -0.05 - 0.1 * speed_b]
    assert torch.allclose(w[0], torch.tensor([float(v) for v in expected]))
    first, second = torch.log(torch.tensor(2.0)), -torch.log(1 - q)
    assert losses[0] == pytest.approx(float(first + second) / 2)


def torchs(widths, weights, x, y, order, batch, epochs, decay, frozen):
    """The same by torch in double precision: parameters, and the mean loss of the last epoch."""
    layers = [nn.Linear(a, b, bias=True).double() for a, b in pairwise(widths)]
    nn.utils.vector_to_parameters(weights.double(), [p for layer in layers for p in layer.parameters()])
    moving = [p for i, layer in enumerate(layers) if i not in frozen for p in layer.parameters()]
    sgd = torch.optim.SGD(moving, lr=0.05, momentum=0.9, weight_decay=decay)
    for epoch in order.view(epochs, -1):
        losses = []
        for i in epoch.split(batch):
            h = x[i].double()
            for n, layer in enumerate(layers):
                h = layer(h) if n + 1 == len(layers) else layer(h).relu()
            loss = F.cross_entropy(h, y[i])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(loss.item())
    return nn.utils.parameters_to_vector([p for layer in layers for p in layer.parameters()]), sum(losses) / len(losses)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("widths", "sizes", "batch", "frozen"),
    [
        ((5, 3), (4, 1, 7), 3, ()),
        ((30, 40, 33, 10), (20, 25, 10), 10, ()),
        ((17, 200, 9), (33, 1), 32, ()),
        ((300, 7, 6, 5, 4), (12, 3, 3, 3, 9), 4, ()),
        ((12, 20, 5), (9, 11), 5, (1,)),  # a frozen classifier
        ((12, 20, 16, 5), (9, 11), 5, (0, 1)),  # a frozen body
        ((12, 20, 16, 5), (9, 11), 5, (1,)),
    ],
)
def test_clients_end_where_torch_ends(widths, sizes, batch, frozen, threads):
    draw = torch.Generator().manual_seed(0)
    shapes = list(pairwise(widths))
    row = torch.cat([0.3 * torch.randn(b * a + b, generator=draw) for a, b in shapes])
    move, layers, at = mlp.Move(0.05, 0.9, 1e-2), [], 0
    for i, (a, b) in enumerate(shapes):
        how = mlp.STAYS if i in frozen else move
        layers.append(mlp.Layer(a, b, at, at + a * b, how, how))
        at += a * b + b
    x, y = torch.randn(sum(sizes), widths[0], generator=draw), torch.randint(widths[-1], (sum(sizes),), generator=draw)
    orders = [torch.cat([torch.randperm(n, generator=draw) for _ in range(2)]) for n in sizes]
    w = rows(torch.full((len(sizes), len(row)), float("nan")))
    losses = mlp.train(layers, w, row, x, y, torch.tensor(sizes), torch.cat(orders), batch, 2, threads)
    for mine, loss, order, xs, ys in zip(w, losses, orders, x.split(list(sizes)), y.split(list(sizes)), strict=True):
        expected, expected_loss = torchs(widths, row, xs, ys, order, batch, 2, 1e-2, frozen)
        assert torch.allclose(mine.double(), expected, rtol=1e-4, atol=1e-5)
        assert float(loss) == pytest.approx(expected_loss, rel=1e-4, abs=1e-5)


def test_no_bit_depends_on_threads_or_on_the_other_clients():
    draw = torch.Generator().manual_seed(0)
    move = mlp.Move(0.05, 0.9, 0.0)
    layers = [mlp.Layer(9, 20, 0, 180, move, move), mlp.Layer(20, 4, 200, -1, move)]
    row, sizes = torch.randn(280, generator=draw), [5, 12, 3, 9]
    x, y = torch.randn(29, 9, generator=draw), torch.randint(4, (29,), generator=draw)
    order = torch.cat([torch.randperm(n, generator=draw) for n in sizes])
    found = []
    for threads in (1, 2, 4):
        w = rows(torch.zeros(4, 280))
        mlp.train(layers, w, row, x, y, torch.tensor(sizes), order, 4, 1, threads)
        found.append(w)
    alone = rows(torch.zeros(1, 280))
    mlp.train(layers, alone, row, x[5:17], y[5:17], torch.tensor([12]), order[5:17], 4, 1)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][1], alone[0])
