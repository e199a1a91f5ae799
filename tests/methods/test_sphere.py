"""SphereFed: unit features on a frozen orthonormal classifier."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from toy import OneWeight, one_round, several, skewed, task_of

from headway.base.errors import RecipeError
from headway.base.tree import stream
from headway.methods import recipe as parse
from headway.models import heads
from headway.training import rounds
from headway.training.client import personal_net


@pytest.mark.parametrize(("dim", "classes"), [(3, 3), (10, 3), (64, 10), (17, 10)])
def test_rows_are_orthonormal(dim: int, classes: int) -> None:
    W = heads.orthonormal(dim, classes, stream("w", dim))
    assert W.shape == (classes, dim)
    assert torch.allclose(W @ W.T, torch.eye(classes), atol=1e-6)


def test_the_recipes_classifier_is_orthonormal_and_its_own_for_every_seed() -> None:
    W = [skewed(2, train_size=30, seed=s).net(parse("sphere")).head.weight for s in (0, 1)]
    for w in W:
        assert torch.allclose(w @ w.T, torch.eye(10), atol=1e-5)
    assert not torch.allclose(W[0], W[1])


@pytest.mark.parametrize("tau", [1.0, 15.0])
def test_logits_are_tau_w_unit_h(tau: float) -> None:
    # h = (3, 4) -> (0.6, 0.8)
    task = task_of([[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(2.0, 2))
    net = task.net(parse(f"sphere(tau={tau})"))
    assert torch.allclose(net(torch.tensor([[3.0, 4.0]])), tau * torch.tensor([[0.6, 0.8]]) @ net.head.weight.T)


def test_a_dead_feature_gives_even_logits() -> None:
    net = task_of([[3.0, 4.0]], [0], [[0]], body=lambda: OneWeight(0.0, 2)).net(parse("sphere"))
    assert torch.equal(net(torch.tensor([[3.0, 4.0]])), torch.zeros(1, 2))


def test_one_step_equals_the_formula() -> None:
    # one client, one full batch: body <- body - lr grad CE(tau W h/||h||, y), nothing else moves
    task, recipe = (
        skewed(1, partition="iid", train_size=20, momentum=0.9, batch_size=100, lr=0.5),
        parse("sphere(tau=5)"),
    )
    net = task.net(recipe)
    x, y = task.data[0]
    h = net.body(net.inputs(x))
    F.cross_entropy(5 * (h / h.norm(dim=1, keepdim=True)) @ net.head.weight.T, y).backward()
    server, _, _ = one_round(recipe, task)
    assert set(server.w) == {f"body.{name}" for name, _ in net.body.named_parameters()}
    for name, p in net.body.named_parameters():
        assert torch.allclose(server.w[f"body.{name}"], p - 0.5 * p.grad, atol=1e-6), name


def test_the_classifier_neither_moves_nor_is_sent() -> None:
    task, recipe = skewed(3, train_size=90, momentum=0.9, weight_decay=0.1, lr=1.0), parse("sphere")
    server, _ = several(recipe, task, 2)
    assert torch.equal(rounds.global_net(server, recipe, task).head.weight, task.net(recipe).head.weight)
    assert not any(name.startswith("head") for name in rounds.cast_of(server, recipe).w)


def test_finetuning_frees_the_classifier() -> None:
    task, recipe = skewed(2, train_size=60, lr=1.0), parse("sphere+ft")
    server, engine = several(recipe, task, 1)
    cast = rounds.cast_of(server, recipe)
    *_, (_, net) = personal_net(
        recipe, task, cast, engine.client(recipe, task, cast, 0), rounds.personal_phases(recipe, task)
    )
    assert not torch.equal(net.head.weight, task.net(recipe).head.weight)


def test_fewer_features_than_classes_are_refused() -> None:
    task = task_of([[1.0, 2.0]] * 3, [0, 1, 2], [[0, 1, 2]], classes=3, body=lambda: OneWeight(1.0, 2))
    with pytest.raises(RecipeError, match=r"sphere: 3 .*at least 3 features and the body gives 2; use a wider body"):
        rounds.begin(parse("sphere"), task)


def test_as_many_features_as_classes_are_enough() -> None:
    task = task_of([[1.0, 2.0]] * 2, [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2))
    assert rounds.begin(parse("sphere"), task).round == 0
