"""Ditto: beside the federation each client trains a model of its own, pulled to the one it received."""

from __future__ import annotations

import pytest
import torch
from toy import Normed, assert_same, one_round, several, skewed, slope, task_of, two_clients

from headway.methods import recipe as parse
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.training import rounds
from headway.training.client import personal_net

DATA = [([2.0], 0), ([1.0, 2.0], 1)]


def own(engine, k: int, name: str = "body.u") -> torch.Tensor:
    return engine.store.get(k).kept["ditto"]["v"][name]


@pytest.mark.parametrize(("pull", "rho", "epochs"), [(0.75, 0.0, 1), (2.0, 0.0, 3), (2.0, 0.9, 2), (0.0, 0.0, 2)])
def test_two_rounds_by_hand(pull: float, rho: float, epochs: int) -> None:
    # w: FedAvg. v <- v - eta (f'(v) + lambda (v - w^t)), towards w^t as received, from v of the last round
    server, engine = several(f"ditto(pull={pull})+babu", two_clients(start=0.5, momentum=rho, epochs=epochs), 2)
    w, v = 0.5, [0.5, 0.5]
    for _ in range(2):
        ends = []
        for k, (xs, y) in enumerate(DATA):
            u, m, q, n = w, 0.0, v[k], 0.0
            for _ in range(epochs):
                m = rho * m + slope(u, xs, y)
                u -= 0.1 * m
                n = rho * n + slope(q, xs, y) + pull * (q - w)
                q -= 0.1 * n
            ends.append(u)
            v[k] = q
        w = ends[0] / 3 + 2 * ends[1] / 3
    assert float(server.w["body.u"]) == pytest.approx(w, rel=1e-4)
    assert [float(own(engine, k)) for k in (0, 1)] == pytest.approx(v, rel=1e-4)


def test_the_general_model_is_fedavgs_bit_for_bit() -> None:
    task = skewed(4, train_size=160, sampling=0.5, momentum=0.9, weight_decay=1e-3)
    (ditto, _), (plain, _) = several("ditto", task, 3), several("fedavg", task, 3)
    assert_same((ditto.w, ditto.stats), (plain.w, plain.stats))


def test_nothing_more_is_sent_than_under_fedavg() -> None:
    recipe, task = parse("ditto"), skewed(3, train_size=90)
    server, reports, _ = one_round(recipe, task)
    assert all(r.sent == {} for r in reports)
    assert rounds.cast_of(server, recipe).sent == {}


def test_clients_not_sampled_keep_their_model() -> None:
    task = skewed(4, train_size=160, sampling=0.25)
    picked = [task.sampling(t)[0] for t in range(12)]
    t = next(t for t in range(1, 12) if picked[t] != picked[t - 1])
    k = picked[t - 1]
    _, engine = several("ditto", task, t)
    held = engine.store.get(k)
    _, later = several("ditto", task, t + 1)
    assert_same(later.store.get(k).kept, held.kept)


def test_the_personal_model_is_v_and_is_not_trained_further() -> None:
    task, recipe = skewed(3, train_size=300, lr=0.2), parse("ditto")
    server, engine = several(recipe, task, 3)
    assert rounds.personal_phases(recipe, task) == []
    cast = rounds.cast_of(server, recipe)
    ((_, net),) = personal_net(recipe, task, cast, engine.store.get(1), [])
    assert torch.equal(net.head.weight, own(engine, 1, "head.weight"))
    assert not torch.equal(net.head.weight, server.w["head.weight"])
    glob = rounds.global_net(server, recipe, task)
    score = global_score(glob, engine, task)
    received = received_score(server, recipe, task, engine, glob, score, personal_ids(task))
    x, y = task.test(1)
    assert received.correct[1] == int((net(x).argmax(1) == y).sum())


def test_a_client_that_never_took_part_predicts_with_the_global_model() -> None:
    task, recipe = skewed(4, train_size=160, sampling=0.25), parse("ditto")
    server, engine = several(recipe, task, 1)
    k = next(k for k in range(4) if k not in engine.store.ids())
    cast = rounds.cast_of(server, recipe)
    ((_, net),) = personal_net(recipe, task, cast, engine.client(recipe, task, cast, k), [])
    assert torch.equal(net.head.weight, server.w["head.weight"])


def test_v_has_running_statistics_of_its_own() -> None:
    # lr ~ 0: A x stays; v's statistics are its own passes over its own data: r <- 0.9 r + 0.1 mean, twice
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed, lr=1e-9)
    _, engine = several("ditto", task, 2)
    expected = 0.19 * torch.tensor([2.25, -0.5])
    assert torch.allclose(own(engine, 0, "body.bn.running_mean"), expected, atol=1e-5)


def test_v_trains_by_the_recipes_loss() -> None:
    # client 0 of class 0 only, mse: dL/du = x (2 h - 1), at u = 0.5, x = 2: 2; no pull in the first step
    _, _, engine = one_round("ditto+mse+babu", two_clients(start=0.5))
    assert float(own(engine, 0)) == pytest.approx(0.5 - 0.2)
    # the restricted softmax: -1.5 x (1 - p_0), p_0 = sigmoid(1.5 h)
    _, _, engine = one_round("ditto+restricted+babu", two_clients(start=0.5))
    assert float(own(engine, 0)) == pytest.approx(0.5 + 0.1 * 3 * (1 / (1 + torch.tensor(1.5).exp())).item(), rel=1e-5)


def test_ditto_plain_sgd_touches_the_second_model_only() -> None:
    task = two_clients(epochs=3, momentum=0.9)
    (plain, a), (heavy, b) = several("ditto(plain_sgd=true)+babu", task, 1), several("ditto+babu", task, 1)
    assert_same(plain.w, heavy.w)
    mine, theirs = (engine.store.get(0).kept["ditto"]["v"]["body.u"] for engine in (a, b))
    assert float(mine) != float(theirs)
    v = 0.0
    for _ in range(3):
        v -= 0.1 * (slope(v, [2.0], 0) + 0.75 * v)  # grad f(v) + lambda (v - w^t), w^t = 0
    assert float(mine) == pytest.approx(v, rel=1e-5)
