"""The Ray engine on real clusters: the local engine's bits, whoever dies. `make ray` runs these."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import raynodes
import toy

from headway.base.errors import EngineError
from headway.engines import LocalEngine
from headway.engines.transport import from_array
from headway.methods import recipe as parse
from headway.models.net import chunks
from headway.training import rounds
from headway.training.settings import settings
from headway.training.task import build

pytest.importorskip("ray", reason="Ray is not installed; `make ray` installs it and runs these tests")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(580)]


def quiet(done, total):
    pass


# ---- the engine
@pytest.mark.parametrize("text", raynodes.RECIPES)
def test_one_node_gives_the_bits_of_the_local_engine(text, engines):
    task, recipe = toy.skewed(6), parse(text)
    alone, engine = LocalEngine(), engines(recipe, task)
    ends = [rounds.run(recipe, task, e, 3) for e in (alone, engine)]
    toy.assert_same(toy.state_of(ends[1], engine), toy.state_of(ends[0], alone))
    server, phases = ends[0], rounds.personal_phases(recipe, task)
    finished = [rounds.finish(server, recipe, task, e).tensors() for e in (alone, engine)]  # surveys are sent too
    toy.assert_same(finished[1], finished[0])
    args = (recipe, task, rounds.cast_of(server, recipe), range(6), phases, True)
    toy.assert_same(list(engine.personal(*args)), list(alone.personal(*args)))


def test_a_large_test_set_of_an_own_file_is_answered_in_parts(engines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the workers run elsewhere, and the file's name starts here
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2500, 4)).astype("float32"), np.arange(2500) % 3
    np.savez("own.npz", x=x[:90], y=y[:90], x_test=x, y_test=y)
    task = build(settings({"data": "own.npz", "clients": 3, "partition": "iid", "model": "mlp_small"}))
    recipe = parse("fedetf")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    assert len(chunks(task.dataset.x_test)) > 1
    toy.assert_same(engines(recipe, task).logits(task, net), LocalEngine().logits(task, net))


def test_a_killed_worker_changes_no_bit_and_is_told_of(engines):
    task, recipe = toy.skewed(6, epochs=5), parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 3), alone)
    said, killed = [], []
    engine = engines(recipe, task, say=said.append)

    def tick(done, total):
        if not killed and engine.store.ids() and engine.group._busy:  # the second round or later
            killed.append(next(iter(engine.group._busy.values()))[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    engine.tick = tick
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 3), engine), expected)
    assert engine.deaths == 1
    assert len(said) == 1
    assert f"worker {killed[0]}" in said[0]
    assert "died while working on client" in said[0]


def test_a_stopped_round_leaves_no_trace_and_the_engine_can_be_used_again(engines):
    task, recipe = toy.skewed(6), parse("scaffold")
    engine = engines(recipe, task)
    server = rounds.begin(recipe, task)

    def tick(done, total):
        if done == 2:
            raise KeyboardInterrupt

    engine.tick = tick
    with pytest.raises(KeyboardInterrupt):
        rounds.run_round(server, recipe, task, engine)
    assert engine.store.ids() == []
    assert engine.group._busy == {}
    engine.tick = quiet
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, task, alone, 1), alone)
    toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 1), engine), expected)


def test_a_model_that_cannot_be_built_from_its_name_is_refused(session):
    from headway.engines.ray.engine import RayEngine

    by_hand = toy.task_of([2.0, 1.0], [0, 1], [[0], [1]], body=toy.OneWeight)  # an object under a model's name
    with pytest.raises(EngineError, match=r"node .* cannot build this task: it differs in first_weights"):
        RayEngine(parse("fedavg"), by_hand, 1)


# ---- shards


def test_samples_go_into_the_object_store_once_and_only_for_those_who_take_part(engines):
    task, recipe = toy.skewed(6, sampling=0.5), parse("fedavg")
    engine, put = engines(recipe, task), []
    real = engine.shards._put
    engine.shards._put = lambda packed: put.append(packed) or real(packed)
    rounds.run(recipe, task, engine, 4)
    took_part = {k for t in range(4) for k in task.sampling(t)}
    assert len(put) == len(took_part)
    kept = [from_array(packed)["y"] for packed in put]
    assert sum(map(len, kept)) == sum(map(task.data.size, took_part))
    assert len(json.dumps(engine.group._order)) < 10_000  # and no sample is in what workers are told


# ---- values
