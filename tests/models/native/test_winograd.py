"""Convolutions by Winograd's algorithm: the definition's numbers up to rounding, and only where it pays."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.models.native import winograd
from headway.models.native.build import compiler

needs_compiler = pytest.mark.skipif(compiler() is None, reason="the kernel is built by a C++ compiler")
SHAPES = [
    # tile, filter, padding, batch, channels, filters, height, width
    (4, 3, 1, 2, 16, 16, 8, 8), (4, 3, 0, 3, 17, 5, 9, 14), (4, 3, 2, 1, 3, 33, 5, 7), (4, 3, 1, 40, 20, 24, 6, 5),
    (4, 3, 1, 1, 64, 130, 4, 4), (4, 3, 1, 2, 1, 1, 3, 3), (2, 3, 1, 9, 40, 70, 2, 2), (2, 3, 0, 2, 5, 3, 5, 4),
    (2, 5, 0, 3, 32, 64, 14, 14), (2, 5, 2, 2, 18, 7, 9, 6), (2, 5, 4, 1, 4, 4, 3, 5), (2, 5, 0, 60, 3, 2, 6, 6),
]  # fmt: skip


def test_a_tile_by_hand():
    """x = 1..25 as 5 x 5, a 3x3 filter of ones: nine times the middle of each square, 7 .. 9, 12 .. 14, 17 .. 19."""
    x, w = torch.arange(1.0, 26.0).view(1, 1, 5, 5), torch.ones(1, 1, 3, 3)
    y = winograd.forward(x, w, None, 4, 0) if compiler() else F.conv2d(x, w)
    middles = torch.tensor([[7.0, 8, 9], [12, 13, 14], [17, 18, 19]])
    assert torch.allclose(y[0, 0], 9 * middles, rtol=1e-5)


@needs_compiler
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradients_are_the_definitions(shape, bias):
    m, side, padding, batch, channels, filters, high, wide = shape
    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(s, generator=draw) for s in ((batch, channels, high, wide), (filters, channels, side, side)))
    b = torch.randn(filters, generator=draw) if bias else None
    ours, exact = (
        [t.to(k).requires_grad_() for t in (x, w, b) if t is not None] for k in (torch.float32, torch.float64)
    )
    y = winograd.Winograd.apply(*ours, *([] if bias else [None]), m, padding)
    z = F.conv2d(*exact, *([] if bias else [None]), padding=padding)
    gy = torch.randn(z.shape, generator=draw)
    found, wanted = torch.autograd.grad(y, ours, gy), torch.autograd.grad(z, exact, gy.double())
    for a, e in zip((y, *found), (z, *wanted), strict=True):
        assert (a - e).norm() <= 2e-5 * e.norm()


@needs_compiler
def test_it_rounds_about_as_little_as_torch():
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(16, 64, 16, 16, generator=draw), torch.randn(64, 64, 3, 3, generator=draw)
    exact = F.conv2d(x.double(), w.double(), padding=1)
    ours, torchs = (
        (y - exact).norm() / exact.norm() for y in (winograd.forward(x, w, None, 4, 1), F.conv2d(x, w, padding=1))
    )
    assert ours < 4 * torchs
    assert ours < 2e-6


@needs_compiler
def test_gradients_can_be_differentiated_again():
    torch.manual_seed(0)
    x, w, answers = torch.randn(2, 4, 8, 8), torch.randn(5, 4, 3, 3), []
    for f in (lambda x, w: winograd.Winograd.apply(x, w, None, 4, 1), lambda x, w: F.conv2d(x, w, padding=1)):
        here, filters = x.clone().requires_grad_(), w.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(here, filters).square().sum(), here, create_graph=True)
        answers.append(torch.autograd.grad(g.square().sum(), [here, filters]))
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3 * b.abs().max()) for a, b in zip(*answers, strict=True))


@needs_compiler
def test_only_one_of_two_gradients_may_be_needed():
    x, w = torch.randn(8, 16, 16, 16), torch.randn(16, 16, 3, 3)
    for moves in ((True, False), (False, True)):
        given = [t.clone().requires_grad_(m) for t, m in zip((x, w), moves, strict=True)]
        y = winograd.conv2d(*given, None, (1, 1), (1, 1), (1, 1), 1)
        y.sum().backward()
        assert [t.grad is not None for t in given] == list(moves)


@pytest.mark.parametrize(
    ("x", "w", "padding", "side"),
    [
        ((64, 16, 32, 32), (16, 16, 3, 3), (1, 1), 4),
        ((64, 512, 2, 2), (512, 512, 3, 3), (1, 1), 2),  # tiles of four would be mostly empty
        ((64, 32, 14, 14), (64, 32, 5, 5), (0, 0), 2),
        ((64, 3, 32, 32), (16, 3, 3, 3), (1, 1), 0),  # few channels: reading tiles costs what is saved
        ((64, 16, 32, 32), (8, 16, 3, 3), (1, 1), 0),
        ((64, 16, 32, 32), (16, 16, 1, 1), (0, 0), 0),
        ((64, 16, 32, 32), (16, 16, 7, 7), (3, 3), 0),
        ((64, 16, 32, 32), (16, 16, 3, 5), (1, 1), 0),
        ((64, 16, 32, 32), (16, 16, 3, 3), (0, 1), 0),
        ((1, 16, 4, 4), (16, 16, 3, 3), (1, 1), 0),  # one tile: transforming the filters costs more
        ((64, 16, 2, 2), (16, 16, 3, 3), (0, 0), 0),  # torch says what is wrong
    ],
)
def test_where_it_is_used(x, w, padding, side):
    assert winograd.tile(torch.Size(x), torch.Size(w), padding) == side


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(16, 16, 3, stride=2), nn.Conv2d(16, 16, 3, dilation=2), nn.Conv2d(16, 16, 3, groups=2),
        nn.Conv2d(16, 16, 3, padding="same"),
    ],
)  # fmt: skip
def test_other_convolutions_are_torchs(conv):
    x = torch.randn(8, 16, 16, 16)
    assert not winograd.fits(conv, x.shape)
    y = winograd.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)
    assert torch.equal(y, conv(x))
