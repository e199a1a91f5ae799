"""Local training: nobody sends anything, and everybody trains every round."""

from __future__ import annotations

import pytest
import torch
from toy import Normed, assert_same, one_round, several, skewed, slope, task_of, two_clients

from headway.methods import recipe as parse
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.training import rounds
from headway.training.client import first_client


def test_three_rounds_by_hand() -> None:
    # each client descends on its own data alone, from the common start
    _, engine = several("local+babu", two_clients(start=0.5, epochs=2), 3)
    for k, (xs, y) in enumerate([([2.0], 0), ([1.0, 2.0], 1)]):
        u = 0.5
        for _ in range(6):
            u -= 0.1 * slope(u, xs, y)
        assert float(engine.store.get(k).personal["body.u"]) == pytest.approx(u, rel=1e-5)


def test_nothing_is_sent() -> None:
    recipe, task = parse("local"), task_of([[1.0, 0.0], [3.0, 1.0]] * 2, [0, 1] * 2, [[0, 1], [2, 3]], body=Normed)
    server = rounds.begin(recipe, task)
    assert rounds.cast_of(server, recipe).nbytes() == 0
    _, reports, _ = one_round(recipe, task, server)
    assert [r.nbytes() for r in reports] == [0, 0]


def test_all_clients_train_every_round_whatever_the_sampling() -> None:
    task = skewed(5, train_size=150, sampling=0.2)
    assert len(task.sampling(0)) == 1
    _, reports, engine = one_round("local", task)
    assert [r.client for r in reports] == task.everyone() == engine.store.ids() == [0, 1, 2, 3, 4]


def test_empty_clients_rest() -> None:
    _, reports, _ = one_round("local", task_of([1.0, 2.0], [0, 1], [[0], [], [1]]))
    assert [r.client for r in reports] == [0, 2]


def test_running_statistics_stay_on_their_client() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed)
    server, engine = several("local", task, 2)
    assert_same(server.stats, task.first_stats(parse("local")))
    mean = [engine.store.get(k).personal["body.bn.running_mean"] for k in (0, 1)]
    assert float((mean[0] - mean[1]).abs().max()) > 1


def test_the_server_keeps_the_common_start_and_there_is_no_global_model() -> None:
    task, recipe = skewed(3, train_size=90), parse("local")
    server, _ = several(recipe, task, 2)
    assert_same(server.w, task.first_params(recipe))
    assert not rounds.has_global_model(recipe, task)
    assert rounds.personal_phases(recipe, task) == []  # the clients' models are what is evaluated


def test_each_client_is_evaluated_with_its_own_model() -> None:
    task, recipe = skewed(4, train_size=400, lr=0.2), parse("local")
    server, engine = several(recipe, task, 4)
    net = rounds.global_net(server, recipe, task)
    own = received_score(server, recipe, task, engine, net, global_score(net, engine, task), personal_ids(task))
    for k in own.n:
        mine = task.net(recipe).load(engine.store.get(k).personal).eval()
        xs, ys = task.test(k)
        assert own.correct[k] == int((mine(xs).argmax(1) == ys).sum())
    assert own.mean is not None
    assert own.mean > 0.6


def test_first_models_are_alike() -> None:
    task, recipe = skewed(3, train_size=60), parse("local")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    starts = [first_client(recipe, task, cast, k).personal["head.weight"] for k in range(3)]
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[1], starts[2])
