"""Linear layers under small batches: torch's numbers, by another order of sums."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from headway.models import native
from headway.models.native import thin
from headway.models.native.build import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="the kernel is built by a C++ compiler")


def pair(size_in: int, size_out: int, bias: bool = True) -> tuple[nn.Sequential, nn.Sequential]:
    plain = nn.Sequential(nn.Linear(size_in, size_out, bias=bias))
    united = copy.deepcopy(plain)
    native.install(united, batch=10)
    assert type(united[0]) is thin.ThinLinear
    return plain, united


@needs_compiler
def test_a_product_by_hand(monkeypatch):
    monkeypatch.setattr(thin, "LARGE", 1)
    monkeypatch.setattr(thin, "OUT", 1)
    _, net = pair(2, 2)
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        net[0].bias.copy_(torch.tensor([10.0, 20.0]))
    x = torch.tensor([[1.0, -1.0], [0.0, 1.0]], requires_grad=True)
    z = net(x)
    assert z.tolist() == [[9.0, 19.0], [12.0, 24.0]]  # 1 - 2 + 10, 3 - 4 + 20; 2 + 10, 4 + 20
    (z * torch.tensor([[1.0, 2.0], [1.0, 0.0]])).sum().backward()
    assert x.grad.tolist() == [[7.0, 10.0], [1.0, 2.0]]  # 1 + 2 x 3, 2 + 2 x 4; the first row
    assert net[0].weight.grad.tolist() == [[1.0, 0.0], [2.0, -2.0]]  # 1 x (1, -1) + 1 x (0, 1), 2 x (1, -1)
    assert net[0].bias.grad.tolist() == [2.0, 2.0]


@needs_compiler
@pytest.mark.parametrize("batch", [1, 2, 5, 10, 12])
@pytest.mark.parametrize("sizes", [(3072, 200), (331, 203), (2048, 33)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_agrees_with_torch_up_to_rounding(batch, sizes, bias):
    torch.manual_seed(0)
    plain, united = pair(*sizes, bias=bias)
    answers = []
    for net in (plain, united):
        x = torch.randn(batch, sizes[0], generator=torch.Generator().manual_seed(1)).requires_grad_()
        z = net(x)
        z.square().sum().backward()
        answers.append([z, x.grad, *(p.grad for p in net.parameters())])
    for a, b in zip(*answers, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * a.abs().max().item())


@needs_compiler
def test_large_batches_other_shapes_and_evaluation_are_torchs_own():
    plain, united = pair(700, 100)
    for x in (torch.randn(13, 700), torch.randn(2, 3, 700)):
        assert torch.equal(plain(x), united(x))
    x = torch.randn(3, 700)
    assert torch.equal(plain.eval()(x), united.eval()(x))


def test_inputs_of_another_width_are_refused_as_by_torch():
    _, united = pair(700, 100)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        united(torch.randn(4, 350))


def test_only_large_layers_under_small_batches_gain():
    body = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 8))
    assert thin.layers(body, batch=10) == [body[0]]
    assert thin.layers(body, batch=64) == thin.layers(body, batch=1) == []
    assert thin.layers(nn.Linear(1 << 14, 31), batch=10) == []
    assert len(thin.layers(nn.Linear(1 << 14, 32), batch=10)) == 1
