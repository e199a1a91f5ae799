"""A convolution and its max pool as one step: the gradients of the outputs that the pool lets through."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.base.errors import ConfigError
from headway.models.native import build as building
from headway.models.native import pooled

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="the kernel is built by a C++ compiler")


@needs_compiler
def test_gradients_by_hand():
    """x = 1..9, all-one filter 2x2 and bias 0: outputs 12 16 / 24 28, the pool takes 28, from the patch 5 6 8 9."""
    x = torch.arange(1.0, 10.0).view(1, 1, 3, 3).requires_grad_()
    w, b = torch.ones(1, 1, 2, 2, requires_grad=True), torch.zeros(1, requires_grad=True)
    y = pooled.conv_then_pool(x, w, b, (0, 0))
    assert y.tolist() == [[[[28.0]]]]
    (2 * y).sum().backward()
    assert w.grad.flatten().tolist() == [10.0, 12.0, 16.0, 18.0]  # 2 x the patch
    assert b.grad.tolist() == [2.0]
    assert x.grad.flatten().tolist() == [0, 0, 0, 0, 2, 2, 0, 2, 2]  # 2 x the filter, where the patch lies


@needs_compiler
@pytest.mark.parametrize("padding", [(0, 0), (2, 2), (0, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size"),
    [(1, 2, 3, (7, 7)), (3, 32, 5, (32, 32)), (17, 5, 3, (9, 14)), (32, 64, 5, (14, 14)), (64, 3, (1, 4), (8, 11))],
)
def test_gradients_are_torchs_up_to_rounding(channels, filters, kernel, size, bias, padding):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, filters, kernel, padding=padding, bias=bias)
    x, answers = torch.randn(4, channels, *size), []
    for f in (pooled.conv_then_pool, pooled.torch_conv_then_pool):
        here = x.clone().requires_grad_()
        y = f(here, conv.weight, conv.bias, padding)
        tensors = [here, *conv.parameters()]
        answers.append([y, *torch.autograd.grad(y.square().sum(), tensors)])
    for a, b in zip(*answers, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * b.abs().max().item())


@needs_compiler
def test_a_gradient_of_zero_moves_nothing():
    x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3, requires_grad=True)
    y = pooled.conv_then_pool(x, w, None, (0, 0))
    (y * 0.0).sum().backward()
    assert not w.grad.any()


@needs_compiler
def test_only_one_of_two_gradients_may_be_needed():
    x, w = torch.randn(2, 3, 8, 8, requires_grad=True), torch.randn(5, 3, 3, 3)
    pooled.conv_then_pool(x, w, None, (0, 0)).sum().backward()
    own = x.detach().clone().requires_grad_()
    F.max_pool2d(F.conv2d(own, w), 2).sum().backward()
    assert torch.allclose(x.grad, own.grad, atol=1e-5)


@needs_compiler
def test_gradients_can_be_differentiated_again():
    torch.manual_seed(0)
    x, w, answers = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3), []
    for f in (pooled.conv_then_pool, pooled.torch_conv_then_pool):
        here, filters = x.clone().requires_grad_(), w.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(here, filters, None, (0, 0)).square().sum(), here, create_graph=True)
        answers.append(torch.autograd.grad(g.square().sum(), [here, filters]))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-2) for a, b in zip(*answers, strict=True))


def test_double_precision_is_torchs_own():
    x, w = torch.randn(2, 2, 8, 8, dtype=torch.float64), torch.randn(3, 2, 3, 3, dtype=torch.float64)
    assert torch.equal(pooled.conv_then_pool(x, w, None, (0, 0)), F.max_pool2d(F.conv2d(x, w), 2))


@pytest.mark.parametrize(
    ("conv", "pool", "known"),
    [
        (nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), True),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d((2, 2), stride=2), True),
        (nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(2, 2, 3, groups=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(1, 2, 3, dilation=2), nn.MaxPool2d(2), False),
        (nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2), False),
        (nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2), False),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, stride=2), False),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1), False),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, return_indices=True), False),
    ],
)
def test_only_what_the_kernel_computes_is_known(conv, pool, known):
    assert (pooled.is_conv(conv) and pooled.is_pool(pool)) is known


def test_without_a_compiler_it_says_so(monkeypatch):
    building.library.cache_clear()
    monkeypatch.setattr(building, "compiler", lambda: None)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler and there is none; install g\+\+"):
        building.library("pooled.cpp")


@needs_compiler
def test_code_that_cannot_be_built_says_so_and_leaves_nothing(monkeypatch, tmp_path):
    building.library.cache_clear()
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    monkeypatch.setattr(building, "FLAGS", ("-no-such-flag",))
    with pytest.raises(ConfigError, match=r"pooled.cpp could not be built .*native='off'"):
        building.library("pooled.cpp")
    assert list((tmp_path / "compiled").iterdir()) == []


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    building.library.cache_clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"pooled.cpp could not be built in .* set HEADWAY_CACHE"):
        building.library("pooled.cpp")


@needs_compiler
def test_a_header_that_changes_builds_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "a.cpp"
    source.write_text('#include "b.h"\nextern "C" int answer() { return kAnswer; }\n')
    for number in (1, 2):
        (tmp_path / "b.h").write_text(f"constexpr int kAnswer = {number};\n")
        assert building.built(source).answer() == number
