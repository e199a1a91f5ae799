"""Workers that die or fail: what is lost is trained again, and the run says why it stops."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest
import toy

from headway.base.errors import EngineError
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.engines import LocalEngine, PoolEngine, pool
from headway.methods import recipe as parse
from headway.models import net as net_module
from headway.runs.runner import Options, execute, resume
from headway.training import rounds
from headway.training.settings import settings


@pytest.fixture(scope="module")
def task():
    return toy.skewed(6, sampling=0.67, momentum=0.9, weight_decay=1e-3, train_size=300, augment="flip")


class Faulty(Piece):
    name, slot = "faulty", "reg"

    def penalty(self, batch, local):
        raise ValueError("my own bug at batch 7")


def test_an_error_in_a_worker_reaches_the_run_as_it_is():
    task = toy.skewed(4, train_size=100)
    engine = PoolEngine(Recipe((*parse("fedavg").pieces, Faulty())), task, 2)
    try:
        with pytest.raises(ValueError, match="my own bug at batch 7") as caught:
            rounds.run(engine.recipe, task, engine, 1)
        assert "in penalty" in str(caught.value.__cause__)  # the worker's own traceback
    finally:
        engine.close()


def test_a_worker_that_dies_during_evaluation_is_replaced(monkeypatch):
    from headway.models import net as net_module

    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))
    task, recipe = toy.skewed(4, train_size=100), parse("fedavg")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    engine = PoolEngine(recipe, task, 2)
    try:
        engine.workers[0].stop()
        engine.workers[0].pipe, theirs = __import__("multiprocessing").Pipe()
        theirs.close()
        with pytest.raises(OSError):
            engine.workers[0].pipe.send(1)
        engine._replace(0)
        toy.assert_same(engine.logits(task, net), LocalEngine().logits(task, net))
    finally:
        engine.close()


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


@pytest.mark.parametrize("moment", [1, 5, 9])
def test_clients_that_wait_behind_one_another_survive_a_death(moment, pooled):
    """Workers hold a second client while they train the first; both are trained once, with their own notes."""
    task, recipe = toy.skewed(12, momentum=0.9, train_size=240), parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 3), alone)
    engine = pooled(recipe, task, 2)
    ticks = []

    def tick(done, total):
        ticks.append(done)
        if len(ticks) == moment:
            os.kill(engine.workers[1].pid, signal.SIGKILL)

    engine.tick = tick
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 3), engine), expected)


def test_a_worker_that_dies_before_an_evaluation_is_replaced_and_told_of(monkeypatch):
    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))  # 359 digits in four parts
    digits, recipe, told = toy.skewed(4, train_size=200), parse("fedavg"), []
    net = rounds.global_net(rounds.begin(recipe, digits), recipe, digits)
    with closing(PoolEngine(recipe, digits, 2, say=told.append)) as engine:
        os.kill(engine.workers[0].pid, signal.SIGKILL)
        os.waitpid(engine.workers[0].pid, 0)
        toy.assert_same(engine.logits(digits, net), LocalEngine().logits(digits, net))
        said = "a worker process died while evaluating; a new worker evaluates its part of the test set again"
        assert (engine.deaths, told) == (1, [said])


def test_a_worker_that_dies_between_rounds_is_replaced(task, pooled):
    recipe = parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 2), alone)
    engine = pooled(recipe, task, 2)
    server = rounds.run(recipe, task, engine, 1)
    dead = engine.workers[0].pid
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 2, server), engine), expected)
    assert engine.workers[0].pid != dead


def ends_its_worker(*args, **given):
    """Stands for work that the system kills, as it does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_client_that_ends_every_worker_stops_the_run_in_one_sentence_and_it_can_be_resumed(tmp_path, monkeypatch):
    s = settings({"clients": 4, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"})
    whole, out = execute("scaffold", s, tmp_path / "whole").path, tmp_path / "run"
    train = pool.train_cohort

    def train_all_but_2(recipe, task, cast, clients, **given):
        return ends_its_worker() if clients[0].id == 2 else train(recipe, task, cast, clients, **given)

    monkeypatch.setattr(pool, "train_cohort", train_all_but_2)
    sentence = (
        "engine=local: 3 worker processes died while training client 2; the machine may be out of memory: give fewer "
        "workers or more memory, then headway.resume(run) continues the run"
    )
    with pytest.raises(EngineError) as told:
        execute("scaffold", s, out, Options(workers=2))
    assert (str(told.value), told.value.exit_code) == (sentence, 2)
    monkeypatch.setattr(pool, "train_cohort", train)
    resume(out, Options(workers=2))
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_an_evaluation_that_ends_every_worker_stops_in_one_sentence(monkeypatch):
    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))  # 359 digits in four parts
    monkeypatch.setattr(pool, "part_logits", ends_its_worker)
    digits, recipe = toy.skewed(4, train_size=200), parse("fedavg")
    net = rounds.global_net(rounds.begin(recipe, digits), recipe, digits)
    with (
        closing(PoolEngine(recipe, digits, 2)) as engine,
        pytest.raises(EngineError, match=r"3 worker processes died while evaluating; .* fewer workers .*resume"),
    ):
        engine.logits(digits, net)


class Oops(Exception):
    """Its constructor takes two, and pickle gives it one."""

    def __init__(self, layer, seen):
        super().__init__(f"layer {layer} saw {seen}")


def test_a_workers_error_with_a_constructor_of_its_own_keeps_its_words(task, monkeypatch):
    def fails(*args, **given):
        raise Oops(1, 2)

    monkeypatch.setattr(pool, "train_cohort", fails)
    with closing(PoolEngine(parse("fedavg"), task, 2)) as engine, pytest.raises(RuntimeError, match="layer 1 saw 2"):
        rounds.run(parse("fedavg"), task, engine, 1)
