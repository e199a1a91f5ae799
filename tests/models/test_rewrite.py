"""Layers that run as one call: found in rows, in functions and across sums; the body's own numbers."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.models import MODELS, body, rewrite
from headway.models.graph import traced
from headway.models.native.build import compiler
from headway.models.united import Conv, ConvPool, Linear, NormThen, fold

needs_compiler = pytest.mark.skipif(compiler() is None, reason="native code is built by a C++ compiler")
IMAGE = (3, 32, 32)


def installed(net: nn.Module, shape: tuple[int, ...], native: bool = True, folded: bool = True) -> nn.Module:
    made = copy.deepcopy(net)
    rewrite.install(made, shape, native=native, folded=folded)
    return made


def answers(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output in training, all gradients and buffers, and the output in evaluation."""
    net.train()
    here = x.clone().requires_grad_()
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        y = net(here)
    grads = torch.autograd.grad(y.square().sum(), [here, *net.parameters()])
    with torch.no_grad():
        return [y, *grads, *(b.clone().float() for b in net.buffers()), net.eval()(x)]


def alike(plain: nn.Module, planned: nn.Module, x: torch.Tensor, limit: float = 1e-3) -> bool:
    pairs = zip(answers(plain, x), answers(planned, x), strict=True)
    return all((a - b).norm() <= limit * a.norm() + 1e-5 for a, b in pairs)


class Functional(nn.Module):
    """A network as tutorials write it: layers in the constructor, functions between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.conv3, self.norm = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 8 * 8, 24)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), kernel_size=2, stride=2)
        x = F.relu(self.norm(self.conv3(x)) + x)
        x = F.dropout(x.view(x.size(0), -1), 0.25, training=self.training)
        return F.relu(self.fc(x))


def test_rows_functions_and_sums_are_found():
    net = Functional()
    training, predicting = rewrite.for_training(net), rewrite.for_prediction(net, native=False)
    assert training.united == (
        ConvPool("conv1", relu=True), ConvPool("conv2", relu=True), Conv("conv3", native=True),
        NormThen("norm", relu=True), Linear("fc"),
    )  # fmt: skip
    assert predicting.united == (Conv("conv1", relu=True), Conv("conv2", relu=True), Conv("conv3", "norm", relu=True))


def test_a_network_of_functions_gives_its_own_numbers():
    torch.manual_seed(0)
    net, x = Functional(), torch.randn(6, *IMAGE)
    planned = installed(net, IMAGE)
    assert "forward" in vars(planned)
    assert alike(net, planned, x)


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        name
        for name, m in MODELS.items()
        if m.images and name not in ("wrn56_4", "resnet56", "densenet121", "efficientnet_b0")
    ],
)
def test_every_body_has_plans_that_give_its_numbers(name):
    torch.manual_seed(0)
    net, x = body(name, IMAGE, seed_stream=torch.Generator().manual_seed(0)), torch.randn(4, *IMAGE)
    planned = installed(net, IMAGE)
    assert planned.forward.training is not None
    assert planned.forward.predicting is not None
    net.eval(), planned.eval()
    with torch.no_grad():
        a, b = net(x), planned(x)
    assert (a - b).norm() <= 1e-3 * a.norm()
    y = net.train()(x)
    assert (y - planned.train()(x)).norm() <= 1e-2 * y.norm()  # small maps of four images: norms amplify rounding


def test_tables_have_a_plan_for_their_large_layers():
    net = body("mlpnet", (1, 28, 28), seed_stream=torch.Generator())
    assert rewrite.for_training(net).united == (Linear("fc1"), Linear("fc2"), Linear("fc3"))
    assert rewrite.for_prediction(net, native=True).united == (Linear("fc1"), Linear("fc2"), Linear("fc3"))
    assert rewrite.for_prediction(net, native=False) is None  # nothing to fold


@needs_compiler
@pytest.mark.parametrize("inplace", [True, False])
def test_a_relu_before_the_pool_gives_the_bits_of_one_after_it(inplace):
    torch.manual_seed(0)
    conv, relu, pool = nn.Conv2d(3, 5, 3), nn.ReLU(inplace), nn.MaxPool2d(2)
    with torch.no_grad():
        conv.bias.fill_(-0.5)  # in some windows all outputs are negative
    x = torch.randn(4, 3, 9, 10)
    before, after = (installed(nn.Sequential(*row), (3, 9, 10)) for row in ((conv, relu, pool), (conv, pool, relu)))
    assert before.forward.training.united == (ConvPool("0", relu=True),)
    assert all(torch.equal(a, b) for a, b in zip(answers(before, x)[:-1], answers(after, x)[:-1], strict=True))
    assert alike(nn.Sequential(conv, relu, pool), before, x)


def test_a_layer_that_runs_twice_runs_twice():
    torch.manual_seed(0)
    pool, act = nn.MaxPool2d(2), nn.ReLU()
    net = nn.Sequential(nn.Conv2d(1, 3, 3), pool, act, nn.Conv2d(3, 4, 3), pool, act, nn.Flatten())
    assert alike(net, installed(net, (1, 14, 14)), torch.randn(2, 1, 14, 14))


class Between(nn.Module):
    """Something reads the convolution's output besides the pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 2, 3), nn.MaxPool2d(2)

    def forward(self, x):
        z = self.conv(x)
        return self.pool(z) + z.mean()


class InPlace(nn.Module):
    """The input of the convolution changes in place after it, before the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x):
        x = x * 1
        y = self.norm(self.conv(x))
        return torch.relu(y + x.relu_())


def test_a_value_that_others_read_is_not_united():
    net = Between()
    assert rewrite.for_prediction(net, native=False) is None
    assert rewrite.for_training(net).united == (Conv("conv", native=True),)
    assert alike(net, installed(net, (1, 8, 8)), torch.randn(3, 1, 8, 8))


def test_a_sum_is_not_moved_past_what_changes_in_place():
    net, x = InPlace().eval(), torch.randn(3, 4, 8, 8)
    assert rewrite.for_prediction(net, native=False).united == (Conv("conv", "norm"),)
    with torch.no_grad():
        assert torch.allclose(net(x), installed(net, (4, 8, 8))(x), atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3, stride=2), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3, padding="same"), nn.MaxPool2d(2)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, stride=2)),
        (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)),
    ],
)
def test_only_what_native_code_computes_is_united(layers):
    net = nn.Sequential(*layers)
    assert not any(isinstance(u, ConvPool) for u in rewrite.for_training(net).united)
    assert alike(net, installed(net, (1, 9, 9)), torch.randn(3, 1, 9, 9))


def test_a_padding_mode_of_torchs_own_stays_torchs():
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.ReLU())
    assert rewrite.for_training(net) is None
    assert rewrite.for_prediction(net, native=True) is None


class ByValue(nn.Module):
    def forward(self, x):
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.passes = nn.Conv2d(1, 2, 3), 0

    def forward(self, x):
        self.passes += 1
        return F.relu(self.conv(x)) * (0.5 if self.passes > 2 else 1.0)


class Dice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)

    def forward(self, x):
        return F.relu(self.conv(x)) if random.random() < 0.5 else self.conv(x)


class TorchDice(Dice):
    def forward(self, x):
        return F.relu(self.conv(x)) if float(torch.rand(1)) < 0.5 else self.conv(x)


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        z = self.conv(x)
        self.mean.mul_(0.9).add_(z.detach().mean((0, 2, 3)))
        return F.relu(z)


@pytest.mark.parametrize("kind", [ByValue, Counting, Dice, TorchDice, Average])
def test_what_cannot_be_read_faithfully_runs_as_it_is_written(kind):
    net, state = kind(), (random.getstate(), torch.get_rng_state())
    assert traced(net, training=True) is None
    assert "forward" not in vars(installed(net, (1, 8, 8)))
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])


@pytest.mark.parametrize(
    "watch",
    [
        lambda net, called: net[0].register_forward_hook(lambda module, given, z: called.append(z.shape)),
        lambda net, called: net[0].register_forward_pre_hook(lambda module, given: called.append(given)),
        lambda net, called: net[2].register_forward_hook(lambda module, given, z: called.append(z.shape)),
        lambda net, called: net[2].register_full_backward_hook(lambda module, gx, gy: called.append(gy)),
    ],
)
@pytest.mark.parametrize("late", [True, False])
def test_whoever_looks_at_a_layer_sees_it(watch, late):
    net, called = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)), []
    if late:
        rewrite.install(net, (1, 6, 6), native=True, folded=True)
        assert "forward" in vars(net)
    watch(net, called)
    if not late:
        rewrite.install(net, (1, 6, 6), native=True, folded=True)
        called.clear()
    net(torch.randn(2, 1, 6, 6)).sum().backward()
    assert len(called) == 1


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_a_weight_that_is_made_anew_for_every_pass_keeps_learning(norm):
    net = nn.Sequential(norm(nn.Conv2d(1, 2, 3)), nn.ReLU(), nn.MaxPool2d(2))
    rewrite.install(net, (1, 6, 6), native=True, folded=True)
    net(torch.randn(2, 1, 6, 6)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_folding_by_hand():
    """w = 2, b = 1, mean 3, var 4, gamma 6, beta 5, eps 0: s = 6 / 2; w s = 6, (1 - 3) 3 + 5 = -1."""
    one = lambda value: torch.tensor([float(value)])  # noqa: E731
    w, b = fold(one(2).view(1, 1, 1, 1), one(1), one(6), one(5), one(3), one(4), eps=0.0)
    assert (w.item(), b.item()) == (6.0, -1.0)
    w, b = fold(one(2).view(1, 1, 1, 1), None, None, None, one(3), one(4), eps=0.0)
    assert (w.item(), b.item()) == (1.0, -1.5)


@pytest.mark.parametrize("change", ["weight", "bias", "running_mean", "running_var"])
def test_folded_weights_follow_their_layers(change):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    planned, x = installed(net, (2, 6, 6), native=False), torch.randn(2, 2, 6, 6)
    with torch.no_grad():
        planned(x)
        for each in (net, planned):
            getattr(each[1], change).add_(0.5)
        assert torch.allclose(net(x), planned(x), atol=1e-5)


def test_a_copy_has_plans_of_its_own_and_is_freed_at_once():
    net, x = (
        installed(body("resnet8", IMAGE, seed_stream=torch.Generator()), IMAGE, native=False),
        torch.randn(2, *IMAGE),
    )
    other = copy.deepcopy(net).eval()
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
        assert other(x).abs().sum() == 0
        assert net.eval()(x).abs().sum() > 0
    gone = weakref.ref(other)
    gc.disable()
    try:
        del other, p
        assert gone() is None
    finally:
        gc.enable()


class Alive(nn.Identity):
    """Counts the maps that are alive when it runs."""

    counts: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda *_: None)  # so that it is called as it is

    def forward(self, x):
        self.counts.append(sum(type(o) is torch.Tensor and o.shape == (7, 4, 8, 8) for o in gc.get_objects()))
        return x


def test_values_are_freed_when_nothing_reads_them():
    rows = (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Tanh(), Alive()) for _ in range(9))
    planned = installed(nn.Sequential(*rows), (4, 8, 8)).eval()
    assert planned.forward.predicting is not None
    Alive.counts.clear()
    with torch.no_grad():
        planned(torch.randn(7, 4, 8, 8))
    assert len(Alive.counts) == 9
    assert max(Alive.counts) <= 3
