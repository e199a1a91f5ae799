"""A convolution and its max pool as one step: the gradients of the outputs that the pool lets through."""

from __future__ import annotations

import copy
from contextlib import closing

import pytest
import torch
from torch import nn

from headway.base.errors import ConfigError
from headway.engines import LocalEngine
from headway.engines.pool import PoolEngine
from headway.methods import recipe as parse
from headway.models import native
from headway.models.native import build as building
from headway.models.native import pooled
from headway.models.norm import Stack
from headway.training import rounds
from headway.training.settings import Settings
from headway.training.task import build

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="the kernel is built by a C++ compiler")


def row(*layers: nn.Module) -> nn.Sequential:
    united = nn.Sequential(*layers)
    native.install(united, batch=64)
    return united


@needs_compiler
def test_gradients_by_hand():
    """x = 1..9, all-one filter 2x2 and bias 0: outputs 12 16 / 24 28, the pool takes 28, from the patch 5 6 8 9."""
    net = row(nn.Conv2d(1, 1, 2), nn.MaxPool2d(2))
    with torch.no_grad():
        net[0].weight.fill_(1.0)
        net[0].bias.fill_(0.0)
    x = torch.arange(1.0, 10.0).view(1, 1, 3, 3).requires_grad_()
    y = net(x)
    assert y.tolist() == [[[[28.0]]]]
    (2 * y).sum().backward()
    assert net[0].weight.grad.flatten().tolist() == [10.0, 12.0, 16.0, 18.0]  # 2 x the patch
    assert net[0].bias.grad.tolist() == [2.0]
    assert x.grad.flatten().tolist() == [0, 0, 0, 0, 2, 2, 0, 2, 2]  # 2 x the filter, where the patch lies


@needs_compiler
@pytest.mark.parametrize("padding", [0, 2, (0, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "size"),
    [(1, 2, 3, (7, 7)), (3, 32, 5, (32, 32)), (17, 5, 3, (9, 14)), (32, 64, 5, (14, 14)), (64, 3, (1, 4), (8, 11))],
)
def test_gradients_are_torchs_up_to_rounding(channels, filters, kernel, size, bias, padding):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(channels, filters, kernel, padding=padding, bias=bias), nn.MaxPool2d(2), nn.ReLU())
    united = row(*copy.deepcopy(plain))
    x = torch.randn(4, channels, *size)
    answers = []
    for net in (plain, united):
        here = x.clone().requires_grad_()
        y = net(here)
        y.square().sum().backward()
        answers.append([y, here.grad, *(p.grad for p in net.parameters())])
    for a, b in zip(*answers, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4 * a.abs().max().item())
    assert type(united) is pooled.PooledSequential


@needs_compiler
@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("stack", [True, False])
def test_a_relu_before_the_pool_gives_the_bits_of_one_after_it(inplace, stack):
    torch.manual_seed(0)
    conv, relu, pool = nn.Conv2d(3, 5, 3), nn.ReLU(inplace), nn.MaxPool2d(2)
    with torch.no_grad():
        conv.bias.fill_(-0.5)  # in some windows all outputs are negative
    orders = ((conv, relu, pool), (conv, pool, relu), (conv, relu, pool))
    before, after, plain = ([copy.deepcopy(layer) for layer in order] for order in orders)
    made = Stack(5, conv=before[0], relu=before[1], pool=before[2]) if stack else nn.Sequential(*before)
    native.install(made, batch=4)
    assert type(made) is (pooled.PooledStack if stack else pooled.PooledSequential)
    x, answers = torch.randn(4, 3, 9, 10), []
    for net in (made, row(*after), nn.Sequential(*plain)):
        here = x.clone().requires_grad_()
        y = net(here)
        assert (y == 0).any()
        y.square().sum().backward()
        answers.append([y, here.grad, *(p.grad for p in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*answers[:2], strict=True))
    assert torch.allclose(answers[0][0], answers[2][0], atol=1e-6)
    for a, b in zip(answers[0], answers[2], strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_where_all_outputs_of_a_window_are_negative_nothing_moves():
    """Outputs -12 -16 / -24 -28: the ReLU drops them all, and the pool of four zeros has gradient 0."""
    net = row(nn.Conv2d(1, 1, 2, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    with torch.no_grad():
        net[0].weight.fill_(-1.0)
    y = net(torch.arange(1.0, 10.0).view(1, 1, 3, 3))
    y.sum().backward()
    assert y.tolist() == [[[[0.0]]]]
    assert net[0].weight.grad.flatten().tolist() == [0, 0, 0, 0]


@needs_compiler
def test_double_precision_and_evaluation_are_torchs_own():
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(2))
    united = row(*copy.deepcopy(plain))
    x = torch.randn(2, 2, 8, 8)
    assert torch.equal(plain.eval()(x), united.eval()(x))
    wide = x.double()
    assert torch.equal(plain.train().double()(wide), united.train().double()(wide))


def test_one_image_without_a_batch_is_computed_by_torch():
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
    united = row(*copy.deepcopy(plain))
    assert torch.equal(plain(torch.ones(2, 8, 8)), united(torch.ones(2, 8, 8)))


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(2)),
        (nn.Conv2d(2, 2, 3, groups=2), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, stride=2)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)),
    ],
)
def test_only_what_the_kernel_computes_is_united(layers):
    assert pooled.rows(nn.Sequential(*layers)) == []
    assert pooled.rows(Stack(2, conv=nn.Conv2d(1, 2, 3), pool=nn.MaxPool2d(2)))


class Own(nn.Module):
    """A user's network that picks layers out of a row and does something in between."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))

    def forward(self, x):
        return self.layers[1](self.layers[0](x).tanh())


def test_layers_called_one_by_one_stay_what_they_are():
    plain = Own()
    united = copy.deepcopy(plain)
    native.install(united, batch=64)
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(plain(x), united(x))


def test_a_layer_that_stands_in_a_row_twice_runs_twice():
    torch.manual_seed(0)
    pool, act = nn.MaxPool2d(2), nn.ReLU()
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), pool, act, nn.Conv2d(3, 4, 3), pool, act, nn.Flatten())
    united = copy.deepcopy(plain)
    native.install(united, batch=64)
    x = torch.randn(2, 1, 14, 14)
    assert type(united) is pooled.PooledSequential
    assert torch.equal(plain.eval()(x), united.eval()(x))
    assert torch.allclose(plain.train()(x), united.train()(x), atol=1e-5)


@pytest.mark.parametrize(
    "watch",
    [
        lambda net, called: net[0].register_forward_hook(lambda module, given, z: called.append(z.shape)),
        lambda net, called: net[0].register_forward_pre_hook(lambda module, given: called.append(given)),
        lambda net, called: net[1].register_forward_hook(lambda module, given, z: called.append(z.shape)),
        lambda net, called: net[1].register_full_backward_hook(lambda module, gx, gy: called.append(gy)),
    ],
)
def test_whoever_looks_at_one_of_the_two_still_does(watch):
    net, called = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)), []
    native.install(net, batch=64)
    watch(net, called)
    net(torch.randn(2, 1, 6, 6)).sum().backward()
    assert len(called) == 1


def test_whoever_looks_at_the_relu_between_sees_its_own_shape():
    net, seen = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)), []
    native.install(net, batch=64)
    net[1].register_forward_hook(lambda module, given, z: seen.append(tuple(z.shape)))
    net(torch.randn(2, 1, 6, 6)).sum().backward()
    assert seen == [(2, 2, 4, 4)]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_that_is_made_anew_for_every_pass_keeps_learning():
    net = nn.Sequential(nn.utils.weight_norm(nn.Conv2d(1, 2, 3)), nn.MaxPool2d(2))
    native.install(net, batch=64)
    net(torch.randn(2, 1, 6, 6)).sum().backward()
    assert net[0].weight_g.grad.abs().sum() > 0
    assert net[0].weight_v.grad is not None


@needs_compiler
def test_rounds_agree_for_any_number_of_workers_and_with_torch_up_to_rounding():
    given = {"data": "digits", "clients": 3, "train_size": 90, "test_size": 30, "batch_size": 8}
    plain, recipe = build(Settings(**given, model="mcmahan_cnn_padded")), parse("scaffold+fn")
    united = plain.in_layout("channels_last+native")
    with closing(PoolEngine(recipe, united, 2)) as two:
        a, b = rounds.run(recipe, united, LocalEngine(), 2).w, rounds.run(recipe, united, two, 2).w
    c = rounds.run(recipe, plain, LocalEngine(), 2).w
    for name, v in a.items():
        assert torch.equal(v, b[name]), name
        assert torch.allclose(v, c[name], atol=1e-4), name
    assert any(not torch.equal(v, c[name]) for name, v in a.items())  # it was used


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
    with pytest.raises(ConfigError, match=r"pooled.cpp could not be built .*leave out tune=True"):
        building.library("pooled.cpp")
    assert list((tmp_path / "compiled").iterdir()) == []


@needs_compiler
def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    building.library.cache_clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"pooled.cpp could not be built in .* set HEADWAY_CACHE"):
        building.library("pooled.cpp")
