"""Linear layers: the product for small batches, the one for larger ones, and torch's where it is as fast."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from headway.models.native import linear, thin
from headway.models.native.build import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="the kernel is built by a C++ compiler")


@needs_compiler
def test_a_product_by_hand():
    w, b = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).requires_grad_(), torch.tensor([10.0, 20.0]).requires_grad_()
    x = torch.tensor([[1.0, -1.0], [0.0, 1.0]], requires_grad=True)
    z = thin.Thin.apply(x, w, b)
    assert z.tolist() == [[9.0, 19.0], [12.0, 24.0]]  # 1 - 2 + 10, 3 - 4 + 20; 2 + 10, 4 + 20
    (z * torch.tensor([[1.0, 2.0], [1.0, 0.0]])).sum().backward()
    assert x.grad.tolist() == [[7.0, 10.0], [1.0, 2.0]]  # 1 + 2 x 3, 2 + 2 x 4; the first row
    assert w.grad.tolist() == [[1.0, 0.0], [2.0, -2.0]]  # 1 x (1, -1) + 1 x (0, 1), 2 x (1, -1)
    assert b.grad.tolist() == [2.0, 2.0]


@needs_compiler
@pytest.mark.parametrize("batch", [1, 2, 5, 10, 12, 13, 64])
@pytest.mark.parametrize("sizes", [(3072, 200), (331, 203), (2048, 33)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_agrees_with_torch_up_to_rounding(batch, sizes, bias):
    torch.manual_seed(0)
    x, w = torch.randn(batch, sizes[0]), torch.randn(*sizes[::-1])
    b, answers = torch.randn(sizes[1]) if bias else None, []
    for f in (linear.linear, F.linear):
        given = [t.clone().requires_grad_() for t in (x, w, b) if t is not None]
        z = f(*given) if bias else f(*given, None)
        answers.append([z, *torch.autograd.grad(z.square().sum(), given)])
    for a, e in zip(*answers, strict=True):
        assert torch.allclose(a, e, rtol=1e-4, atol=1e-5 * e.abs().max().item())


@pytest.mark.skipif(not linear.onednn_is_faster(), reason="torch's own product is as fast on this processor")
def test_larger_batches_go_to_onednn(monkeypatch):
    assert linear.fits(torch.empty(512, 1600), torch.Size((64, 1600)))
    assert not linear.fits(torch.empty(10, 512), torch.Size((64, 512)))  # too small to matter
    monkeypatch.setattr(linear, "onednn_is_faster", lambda: False)
    assert not linear.fits(torch.empty(512, 1600), torch.Size((64, 1600)))


@needs_compiler
@pytest.mark.parametrize("batch", [3, 40])
def test_gradients_can_be_differentiated_again(batch):
    torch.manual_seed(0)
    x, w, answers = torch.randn(batch, 700), torch.randn(100, 700), []
    for f in (linear.linear, F.linear):
        here, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(here, weight, None).square().sum(), here, create_graph=True)
        answers.append(torch.autograd.grad(g.square().sum(), [here, weight]))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3 * b.abs().max()) for a, b in zip(*answers, strict=True))


@pytest.mark.parametrize("shape", [(2, 3, 700), (700,), (0, 700)])
def test_other_shapes_are_torchs_own(shape):
    x, w = torch.randn(shape), torch.randn(100, 700)
    assert torch.equal(linear.linear(x, w, None), F.linear(x, w))


def test_inputs_of_another_width_are_refused_as_by_torch():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear.linear(torch.randn(4, 350), torch.randn(100, 700), None)


@pytest.mark.parametrize(
    ("batch", "size", "few"),
    [(10, (256, 256), True), (10, (8, 256), False), (1, (256, 256), False), (64, (256, 256), False),
     (10, (31, 1 << 14), False), (10, (32, 1 << 14), True)],
)  # fmt: skip
def test_only_large_layers_under_small_batches_gain(batch, size, few):
    assert thin.applies(batch, torch.empty(size)) is few
