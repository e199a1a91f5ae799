"""Oracle calibration: the classifier retrained on real features."""

from __future__ import annotations

import pytest
import torch
from toy import Normed, OneWeight, assert_same, fixed, several, skewed, task_of

from headway.base.names import in_body
from headway.base.tree import stream
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.oracle import Oracle
from headway.methods.parts.calibration import retrain
from headway.metrics.accuracy import global_score
from headway.training import rounds

X = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0], [1.0, 1.0]]
Y = [0, 0, 0, 1, 1, 0]


def plane(parts: list[list[int]], **given):
    """h = x in the plane; W starts at zero, no bias."""
    return task_of(
        X, Y, parts, body=lambda: OneWeight(1.0, 2), first=fixed([[0.0, 0.0]] * 2), bias=False, **given
    )  # fmt: skip


def caught(monkeypatch, text: str, task):
    """(e, y, settings) that the retraining is given."""
    seen = {}

    def catch(net, e, y, rng, **how):
        seen.update(e=e, y=y, how=how)
        return net

    monkeypatch.setattr("headway.methods.oracle.retrain", catch)
    recipe = parse(text)
    rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())
    return seen["e"], seen["y"], seen["how"]


def test_all_real_features_of_all_clients_are_used(monkeypatch) -> None:
    e, y, how = caught(monkeypatch, "oracle(lr=0.2,epochs=7)", plane([[3, 4], [], [0, 1, 2, 5]], sampling=0.4))
    pairs = sorted(zip(e.tolist(), y.tolist(), strict=True))
    assert pairs == sorted(zip(X, Y, strict=True))
    assert how == {"lr": 0.2, "epochs": 7}


@pytest.mark.parametrize(("per_class", "counts"), [(1, [1, 1]), (2, [2, 2]), (3, [3, 2])])
def test_a_sample_of_each_class_without_replacement(monkeypatch, per_class: int, counts: list[int]) -> None:
    e, y, _ = caught(monkeypatch, f"oracle(per_class={per_class})", plane([[0, 3], [1, 2, 4, 5]]))
    assert torch.bincount(y).tolist() == counts
    assert len(e.unique(dim=0)) == len(e)
    for row, label in zip(e.tolist(), y.tolist(), strict=True):
        assert Y[X.index(row)] == label


def test_features_are_what_the_classifier_sees_in_eval_mode(monkeypatch) -> None:
    e, _, _ = caught(monkeypatch, "fn+oracle", plane([[0, 1, 2, 3, 4, 5]]))
    assert torch.allclose(e.norm(dim=1), torch.ones(6))
    task = task_of(X, Y, [[0, 1, 2, 3, 4, 5]], body=Normed)
    e, _, _ = caught(monkeypatch, "oracle", task)
    net = task.net(parse("oracle")).eval()
    assert torch.allclose(e, net.features(task.data[0][0]))


def test_one_step_by_hand() -> None:
    # W = 0: dW = (softmax - onehot)^T e / n = ((1/2 - 1[y]) e) / n, lr = 0.1
    task, recipe = plane([[0, 3], [1, 2, 4, 5]]), parse("oracle(lr=0.1,epochs=1)")
    net = rounds.finish(rounds.begin(recipe, task), recipe, task, LocalEngine())
    e, sign = torch.tensor(X), torch.tensor([[1.0 if y == 0 else -1.0] for y in Y])
    row = 0.1 * 0.5 * (sign * e).mean(0)
    assert torch.allclose(net.head.weight, torch.stack([row, -row]), atol=1e-6)


def test_the_retraining_is_ccvrs() -> None:
    task, recipe = skewed(3, train_size=90), parse("oracle(epochs=3)")
    server, engine = several(recipe, task, 1)
    net = rounds.finish(server, recipe, task, engine)
    by_hand = rounds.global_net(server, recipe, task)
    e = torch.cat([by_hand.embedding_of(task.data[k][0]) for k in range(3)])
    y = torch.cat([task.data[k][1] for k in range(3)])
    retrain(by_hand, e, y, stream(task.seed, "finish"), lr=0.01, epochs=3)
    assert_same(net.params().copy(), by_hand.params().copy())
    assert_same(net.params().copy().only(in_body), server.w.only(in_body))


def test_it_bounds_what_the_biased_classifier_reaches() -> None:
    task, recipe = skewed(6, train_size=600, lr=0.1), parse("oracle(epochs=30)")
    server, engine = several(recipe, task, 3)
    before = global_score(rounds.global_net(server, recipe, task), engine, task).acc
    assert global_score(rounds.finish(server, recipe, task, engine), engine, task).acc > before + 0.05


def test_a_frozen_classifier_is_replaced_when_asked() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedbabu+oracle(replace_head=true,epochs=2)")
    server, engine = several(recipe, task, 1)
    net = rounds.finish(server, recipe, task, engine)
    assert net.head.weights == "trainable"
    assert not torch.equal(net.head.weight, task.net(parse("fedbabu")).head.weight)


def test_the_default_takes_all_data() -> None:
    assert Oracle() == Oracle(per_class=None, lr=0.01, epochs=100)
