"""Batch normalisation with what follows it: torch's numbers, statistics and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headway.models.native import norm
from headway.models.native.build import compiler


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch):
    """Native code also where calling it takes as long as torch."""
    monkeypatch.setattr(norm, "FEWEST", 0)


needs_compiler = pytest.mark.skipif(compiler() is None, reason="the kernel is built by a C++ compiler")


@needs_compiler
def test_a_batch_by_hand():
    """One channel of four, 1 and 3: mean 2, variance 1; (x - 2) 2 + 1 + other, then the ReLU."""
    layer = nn.BatchNorm2d(4, eps=0.0)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(1.0)
    x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).repeat(1, 4, 1, 1).requires_grad_()
    other = torch.full((2, 4, 1, 1), 0.5, requires_grad=True)
    y = norm.normalised(layer, x, other, relu=True)
    assert y[:, 0].flatten().tolist() == [0.0, 3.5]  # -2 + 1 + 0.5 is negative; 2 + 1 + 0.5
    assert torch.allclose(layer.running_mean, torch.tensor(0.2))  # 0.9 x 0 + 0.1 x 2
    assert torch.allclose(layer.running_var, torch.tensor(0.9 + 0.1 * 2))  # over n - 1: 2
    assert layer.num_batches_tracked == 1
    y.sum().backward()
    assert other.grad[:, 0].flatten().tolist() == [0.0, 1.0]  # where the ReLU lets through
    assert layer.bias.grad.tolist() == [1.0] * 4
    assert layer.weight.grad.tolist() == [1.0] * 4  # 1 x (3 - 2) / 1
    assert torch.allclose(x.grad, torch.tensor(0.0), atol=1e-6)  # two samples: any change is normalised away


@needs_compiler
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    "shape", [(8, 16, 9, 7), (3, 4, 5, 5), (2, 24, 2, 2), (65, 8, 3, 3), (40, 64, 1, 1), (7, 100, 4, 4)]
)
def test_numbers_and_gradients_are_torchs(shape, affine, summed, relu):
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(shape[1], affine=affine)
    if affine:
        nn.init.uniform_(layer.weight, 0.5, 2.0)
        nn.init.normal_(layer.bias)
    ours, exact = layer, copy.deepcopy(layer).double()
    x, other = 3 * torch.randn(shape) + 5, torch.randn(shape)
    gy, answers = torch.randn(shape), []
    for net, kind in ((ours, torch.float32), (exact, torch.float64)):
        given = [t.to(kind).requires_grad_() for t in (x, *([other] if summed else []))]
        if kind == torch.float32:
            y = norm.normalised(net, given[0], given[1] if summed else None, relu)
        else:
            y = net(given[0]) + (given[1] if summed else 0)
            y = y.relu() if relu else y
        grads = torch.autograd.grad(y, [*given, *net.parameters()], gy.to(kind))
        answers.append([y, *grads, net.running_mean, net.running_var])
    for a, e in zip(*answers, strict=True):
        assert (a - e).abs().max() <= 1e-4 * e.abs().max() + 1e-5


@needs_compiler
def test_a_large_mean_does_not_cancel_the_variance():
    torch.manual_seed(0)
    x = 1e4 + torch.randn(64, 16, 8, 8)
    layer = nn.BatchNorm2d(16)
    y = norm.normalised(layer, x, None, relu=False)
    exact = nn.BatchNorm2d(16).double()(x.double())
    assert (y - exact).abs().max() < 5e-3  # the input itself is rounded to 5e-4


def same(layer, x, other=None, relu=False):
    own = copy.deepcopy(layer)
    y, z = norm.normalised(layer, x, other, relu), own(x)
    z = z if other is None else z + other
    return torch.equal(y, z.relu() if relu else z)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.BatchNorm2d(8).eval(), torch.randn(4, 8, 3, 3)),
        (nn.BatchNorm2d(6), torch.randn(4, 6, 3, 3)),  # no vector divides six channels
        (nn.BatchNorm2d(8, momentum=None), torch.randn(4, 8, 3, 3)),
        (nn.BatchNorm2d(8).double(), torch.randn(4, 8, 3, 3, dtype=torch.float64)),
    ],
)
def test_what_native_code_does_not_know_is_the_layers_own(layer, x):
    assert same(layer, x)
    assert same(layer, x, torch.randn_like(x), relu=True)


@needs_compiler
def test_a_term_of_another_shape_is_added_as_torch_does():
    x = torch.randn(4, 8, 3, 3)
    assert same(nn.BatchNorm2d(8), x, torch.randn(8, 1, 1), relu=True)


def test_a_single_value_is_refused_as_by_torch():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm.normalised(nn.BatchNorm2d(8), torch.randn(1, 8, 1, 1), None, relu=False)


@needs_compiler
def test_statistics_that_are_not_tracked_stay():
    layer = nn.BatchNorm2d(8, track_running_stats=False)
    assert norm.normalised(layer, torch.randn(4, 8, 3, 3), None, relu=True).min() >= 0
    assert layer.running_mean is None


@needs_compiler
def test_gradients_can_be_differentiated_again():
    torch.manual_seed(0)
    layer, x, answers = nn.BatchNorm2d(8), torch.randn(4, 8, 3, 3), []
    for f in (lambda x: norm.normalised(layer, x, x * 2, relu=True), lambda x: (layer(x) + x * 2).relu()):
        here = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(here).square().sum(), here, create_graph=True)
        answers.append(torch.autograd.grad(g.square().sum(), [here, *layer.parameters()]))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(*answers, strict=True))


def test_few_numbers_are_torchs(monkeypatch):
    monkeypatch.setattr(norm, "FEWEST", 1 << 15)
    x = torch.randn(10, 512, 2, 2)
    assert not norm.applies(nn.BatchNorm2d(512), x, None)
    assert norm.applies(nn.BatchNorm2d(512), x.repeat(2, 1, 1, 1), None)
