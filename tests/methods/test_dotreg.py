"""Dot regression: the feature is drawn to its class vector, and no other class pushes."""

from __future__ import annotations

import pytest
import torch
import toy
from toy import OneWeight, batch_of, local_of, one_round, several, skewed, task_of

from headway.base.errors import RecipeError
from headway.methods import recipe as parse
from headway.methods.dotreg import DotReg
from headway.training import rounds


def loss_of(W: list[list[float]], y: list[int]) -> torch.Tensor:
    """h = (3, 4) for every sample, so e = (0.6, 0.8)."""
    task = task_of([[3.0, 4.0]] * len(y), y, [list(range(len(y)))], body=lambda: OneWeight(1.0, 2))
    local = local_of(task, "sphere+dotreg")
    local.net.head.weight.copy_(torch.tensor(W))
    return DotReg().criterion(batch_of(local), local).detach()


def test_loss_by_hand() -> None:
    # v = (1, 0): 0.5 (0.6 - 1)^2 = 0.08; v = (0, 1): 0.5 (0.8 - 1)^2 = 0.02; their mean 0.05
    eye = [[1.0, 0.0], [0.0, 1.0]]
    assert float(loss_of(eye, [0])) == pytest.approx(0.08)
    assert float(loss_of(eye, [1])) == pytest.approx(0.02)
    assert float(loss_of(eye, [0, 1])) == pytest.approx(0.05)


def test_a_feature_on_its_class_vector_is_no_loss() -> None:
    assert float(loss_of([[0.6, 0.8], [0.0, 1.0]], [0])) == pytest.approx(0.0, abs=1e-12)


def test_other_classes_do_not_push() -> None:
    assert float(loss_of([[1.0, 0.0], [0.6, 0.8]], [0])) == pytest.approx(
        float(loss_of([[1.0, 0.0], [-1.0, 0.0]], [0]))
    )


def test_the_scale_of_the_logits_plays_no_part() -> None:
    task = skewed(2, train_size=60)
    (one, _, _), (ten, _, _) = (one_round(f"sphere(tau={tau})+dotreg", task) for tau in (1, 10))
    assert all(torch.equal(v, ten.w[name]) for name, v in one.w.items())


def test_training_brings_features_to_their_class_vectors() -> None:
    task, recipe = skewed(2, partition="iid", train_size=100, lr=1.0), parse("fedavg+etfproj+dotreg")
    before = rounds.begin(recipe, task)
    after, _ = several(recipe, task, 5)

    def pull(server) -> float:
        net = rounds.global_net(server, recipe, task)
        e = net.embedding_of(task.dataset.x_test)
        return float((e * net.head.weight[task.dataset.y_test]).sum(1).mean())

    assert pull(after) > pull(before) + 0.3


@pytest.mark.parametrize("head", ["", "+fn", "+babu", "+etf", "+clsnorm", "+cosine", "+proto"])
def test_heads_that_are_not_frozen_and_unit_are_refused(head: str) -> None:
    with pytest.raises(RecipeError, match=r"dotreg needs unit features and a frozen unit classifier"):
        rounds.begin(parse(f"fedavg+dotreg{head}"), skewed(2, train_size=30))


@pytest.mark.parametrize("head", ["sphere", "etfproj", "etfproj(project=false)", "fn+etf"])
def test_frozen_unit_heads_are_allowed(head: str) -> None:
    server, _, _ = one_round(f"{head}+dotreg", skewed(2, train_size=60))
    assert all(v.isfinite().all() for v in server.w.values())


def test_the_memory_acts_under_dot_regression_too():
    plain, lifted = "etfproj+dotreg", "etfproj+dotreg+gmv(warmup=1,alpha=5,space=raw)"
    task = toy.skewed(3, train_size=90)
    a, b = (toy.several(text, task, 3)[0].w for text in (plain, lifted))
    assert any(not torch.equal(a[name], b[name]) for name in a)
