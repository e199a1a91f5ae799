"""Finetuning: each client trains the final global model for itself, a frozen classifier included."""

from __future__ import annotations

import copy

import pytest
import torch
from toy import (
    OneWeight,
    assert_same,
    assert_trains_like_fedavg,
    fixed,
    head_step,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.core.phase import Phase, Step
from headway.core.state import Server
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.finetune import Finetune
from headway.training import rounds
from headway.training.client import first_client, personal_net


def tuned(text: str, task, server: Server | None = None, engine: LocalEngine | None = None, k: int = 0):
    """Client k's own net after finetuning from this server, or from the start."""
    recipe = parse(text)
    cast = rounds.cast_of(server or rounds.begin(recipe, task), recipe)
    client = (engine and engine.store.get(k)) or first_client(recipe, task, cast, k)
    *_, (stage, net) = personal_net(recipe, task, cast, client, rounds.personal_phases(recipe, task))
    assert stage == "finetuned"
    return net


def test_two_epochs_by_hand() -> None:
    # the frozen W = (1, -1) thaws; u and a move together at 0.5 * 0.1, from u = 1
    net = tuned("fedbabu+finetune(epochs=2,factor=0.5)", two_clients(start=1.0))
    u = a = 1.0
    for _ in range(2):
        u, a = u - 0.05 * slope(u, [2.0], 0, scale=a), a - 0.05 * head_step(u, a, [2.0], 0)
    assert net.body.u.item() == pytest.approx(u, rel=1e-6)
    assert net.head.weight.flatten().tolist() == pytest.approx([a, -a], rel=1e-6)


@pytest.mark.parametrize("head", ["babu", "etf", "etfproj", "fn", "fn+babu"])
def test_every_parameter_moves_and_a_frozen_classifier_too(head: str) -> None:
    task = skewed(2, train_size=60, momentum=0.9)
    before = task.net(parse(head)).tensors()
    net = tuned(f"{head}+ft", task)
    after = net.tensors()
    assert isinstance(net.head.weight, torch.nn.Parameter)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == set(after) - ({"head.scale"} if head != "etfproj" else set())


def test_the_global_model_is_left_as_it_was() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedbabu+ft")
    server, engine = several(recipe, task, 2)
    held, frozen = copy.deepcopy(server), task.net(recipe).frozen()
    predictions = rounds.global_net(server, recipe, task)(task.dataset.x[:5])
    for k in range(3):
        tuned("fedbabu+ft", task, server, engine, k)
    assert_same(server, held)
    assert_same(task.net(recipe).frozen(), frozen)
    assert not isinstance(task.net(recipe).head.weight, torch.nn.Parameter)
    assert torch.equal(rounds.global_net(server, recipe, task)(task.dataset.x[:5]), predictions)


def test_clients_start_from_the_global_model_and_not_from_each_other() -> None:
    task = skewed(3, train_size=90)
    server, engine = several("fedbabu+ft", task, 1)
    alone = tuned("fedbabu+ft", task, server, engine, 2).tensors()
    for k in range(3):
        last = tuned("fedbabu+ft", task, server, engine, k).tensors()
    assert_same(last, alone)
    assert not torch.equal(tuned("fedbabu+ft", task, server, engine, 0).head.weight, alone["head.weight"])


def test_training_is_untouched() -> None:
    assert_trains_like_fedavg("fedavg+ft")


@pytest.mark.parametrize(
    ("piece", "rate"), [(Finetune(), 0.1 * 0.4), (Finetune(factor=0.01), 0.004), (Finetune(lr=0.3), 0.3)]
)
def test_learning_rate_is_a_factor_of_the_first_or_its_own(piece: Finetune, rate: float) -> None:
    (phase,) = piece.personalise(epochs=9, lr=0.4)
    assert phase.step(Step(0.01, momentum=0.9, decay=5e-4), "body.u") == Step(pytest.approx(rate), 0.9, 5e-4)
    assert phase.epochs == 5  # its own, not the task's
    assert isinstance(phase, Phase)


def test_decay_of_the_rounds_does_not_reach_the_finetuning() -> None:
    task = two_clients(start=1.0, lr=0.1, lr_decay="0.5")
    server, engine = several("fedbabu+ft(epochs=1,factor=1)", task, 3)
    net = tuned("fedbabu+ft(epochs=1,factor=1)", task, server, engine)
    u = float(server.w["body.u"])
    assert net.body.u.item() == pytest.approx(u - 0.1 * slope(u, [2.0], 0), rel=1e-5)


@pytest.mark.parametrize(("loss", "expected"), [("criterion", 0.0), ("ce", 0.05)])
def test_loss_is_the_recipes_criterion_or_plain(loss: str, expected: float) -> None:
    # counts (3, 1), u = 0: the balanced gradient is zero, that of CE -1/2 (see test_balanced.py)
    task = task_of([1.0] * 4, [0, 0, 0, 1], [[0, 1, 2, 3]], body=lambda: OneWeight(0.0), first=fixed([[1.0], [-1.0]]),
                   bias=False)  # fmt: skip
    net = tuned(f"balanced+finetune(epochs=1,lr=0.1,loss={loss})", task)
    assert net.body.u.item() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("more", ["prox(mu=50)", "moon(mu=50)", "gmv(warmup=1,alpha=9)"])
def test_penalties_and_lifts_are_left_out(more: str) -> None:
    task = skewed(2, train_size=40, lr=0.01, momentum=0.0)
    server, engine = several(f"fedavg+{more}+ft", task, 2)
    with_it = tuned(f"fedavg+{more}+ft(epochs=3)", task, server, engine)
    without = tuned("fedavg+ft(epochs=3)", task, server)
    assert_same(with_it.tensors(), without.tensors())


def test_corrections_are_left_out() -> None:
    task = two_clients(start=0.5)
    server, engine = several("scaffold+ft", task, 2)
    assert float(engine.store.get(0).kept["scaffold"]["c"]["body.u"]) != 0
    with_it, without = tuned("scaffold+ft", task, server, engine), tuned("fedavg+ft", task, server)
    assert_same(with_it.tensors(), without.tensors())


def test_a_personal_head_is_where_it_starts() -> None:
    task = two_clients(start=1.0)
    server, engine = several("fedper+ft(epochs=1,lr=1e-9)", task, 1)
    net = tuned("fedper+ft(epochs=1,lr=1e-9)", task, server, engine)
    assert torch.allclose(net.head.weight, engine.store.get(0).personal["head.weight"])
