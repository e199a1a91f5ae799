"""Workers: side by side, in any number and order, with a death among them, to the same bits."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import toy

from headway import rounds
from headway.engine import LocalEngine, PoolEngine
from headway.engine.transport import Room
from headway.methods import recipe as parse
from headway.tree import Tree

RECIPES = ["fedavg", "scaffold+fn", "moon", "fedrep", "fedtc", "fedproto", "ditto", "fednh", "local"]


@pytest.fixture(scope="module")
def task():
    return toy.skewed(6, sampling=0.67, momentum=0.9, weight_decay=1e-3, train_size=300, augment="flip")


@pytest.fixture
def pooled():
    engines = []

    def make(recipe, task, workers):
        engines.append(PoolEngine(recipe, task, workers))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("text", RECIPES)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_train_to_the_same_bits(text, workers, task, pooled):
    recipe = parse(text)
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 3), alone)
    engine = pooled(recipe, task, workers)
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 3), engine), expected)


def test_personal_models_are_the_same(task, pooled):
    recipe = parse("fedbabu+ft(epochs=1)")
    server = rounds.begin(recipe, task)
    args = (recipe, task, rounds.cast_of(server, recipe), range(6), rounds.personal_phases(recipe, task), True)
    toy.assert_same(list(pooled(recipe, task, 2).personal(*args)), list(LocalEngine().personal(*args)))


def test_the_test_set_is_answered_in_parts_to_the_same_bits(pooled, monkeypatch):
    from headway.models import net as net_module

    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))  # 359 digits in four parts
    task = toy.skewed(4, train_size=200)
    recipe = parse("fedetf")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    toy.assert_same(pooled(recipe, task, 2).logits(task, net), LocalEngine().logits(task, net))


def test_a_dead_worker_is_replaced_and_its_client_trained_again(task, pooled):
    recipe = parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 2), alone)
    engine = pooled(recipe, task, 2)
    killed = []

    def tick(done, total):
        if not killed:
            killed.append(engine.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.tick = tick
    assert_same_run = toy.state_of(rounds.run(recipe, task, engine, 2), engine)
    toy.assert_same(assert_same_run, expected)
    assert engine.workers[0].pid not in killed


def test_closing_leaves_no_process_behind(task):
    engine = PoolEngine(parse("fedavg"), task, 2)
    pids = [w.pid for w in engine.workers]
    engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_values_come_back_through_shared_memory_or_beside_it():
    value = {"t": Tree(a=torch.arange(5.0), b=torch.ones(0)), "n": 3, "flag": torch.tensor([True, False])}
    for size in (4096, 8):  # with room for all, and with room for almost nothing
        room = Room(size)
        toy.assert_same(room.unpack(room.pack(value), copy=True), value)


@pytest.mark.parametrize("text", ["ccvr", "oracle", "ffc"])
def test_surveys_are_answered_side_by_side_to_the_same_bits(text, pooled):
    task, recipe = toy.skewed(6, train_size=300), parse(text)
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    mine, theirs = (list(e.survey(recipe, task, net)) for e in (LocalEngine(), pooled(recipe, task, 2)))
    toy.assert_same(theirs, mine)


@pytest.mark.parametrize("text", ["fedper", "fedtc", "ditto", "fedrod(private=hyper)", "fedavg"])
def test_models_as_received_are_judged_side_by_side_to_the_same_counts(text, task, pooled):
    recipe = parse(text)
    alone = LocalEngine()
    server = rounds.run(recipe, task, alone, 2)
    cast = rounds.cast_of(server, recipe)
    engine = pooled(recipe, task, 2)
    engine.store.put([alone.store.get(k) for k in alone.store.ids()])
    expected = alone.received(recipe, task, cast, range(6))
    assert engine.received(recipe, task, cast, range(6)) == expected
    received = {r.client: r.correct["received"] for r in alone.personal(recipe, task, cast, range(6), [], False)}
    assert received == expected
