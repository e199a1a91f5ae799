"""The Ray engine without Ray: what is sent where, and which workers die. Real clusters: test_clusters.py."""

from __future__ import annotations

import json
from collections import deque

import numpy as np
import pytest
import torch
import toy
from fakeray import ActorDiedError, FakeSession, RayError, Ref

from headway import Dataset, compare
from headway.base.errors import EngineError
from headway.engines import LocalEngine
from headway.engines.ray import engine as cluster
from headway.engines.ray.engine import RayEngine, WorkerGroup
from headway.engines.ray.shards import Shards
from headway.engines.transport import from_array
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.settings import settings
from headway.training.task import build


@pytest.fixture
def engines(monkeypatch):
    monkeypatch.setattr(cluster, "Session", FakeSession)
    return lambda recipe, task, workers=2, **more: RayEngine(recipe, task, workers, **more)


def quiet(done, total):
    pass


# ---- bits: a worker has no data set, and answers as if it had
@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("scaffold+fn+ccvr", {}),
        ("fedrod+ft", {"merge_test": True, "local_test": "0.25"}),
        ("centralized", {}),
        ("ditto", {"local_test": "none", "persist_momentum": True}),
        ("fednh", {"partition": "classes(2)"}),
        ("fedavg+gmv(warmup=1)", {"clients": 40, "partition": "iid", "sampling": 0.2}),
        ("fedavg", {"model": "mcmahan_cnn", "data": "images", "augment": "crop(2)+flip", "normalise": "half"}),
    ],
)
def test_workers_without_a_data_set_give_the_bits_of_the_local_engine(text, given, engines):
    recipe = parse(text)
    if given.get("data") == "images":
        rng = np.random.default_rng(0)
        y = np.arange(60) % 3
        data = Dataset.of(rng.integers(0, 255, size=(60, 3, 32, 32), dtype=np.uint8), y)
        base = {"clients": 3, "partition": "iid", "rounds": 2} | given | {"data": data.name}
        task = build(settings(base), dataset=data)
    else:
        task = toy.skewed(**{"clients": 6} | given)
    task = task.for_recipe(recipe)
    alone, engine = LocalEngine(), engines(recipe, task)
    ends = [rounds.run(recipe, task, e, 2) for e in (alone, engine)]
    toy.assert_same(toy.state_of(ends[1], engine), toy.state_of(ends[0], alone))
    finished = [rounds.finish(ends[0], recipe, task, e).tensors() for e in (alone, engine)]
    toy.assert_same(finished[1], finished[0])
    cast, ids = rounds.cast_of(ends[0], recipe), task.everyone()
    args = (recipe, task, cast, ids, rounds.personal_phases(recipe, task), True)
    toy.assert_same(list(engine.personal(*args)), list(alone.personal(*args)))
    assert engine.received(recipe, task, cast, ids) == alone.received(recipe, task, cast, ids)


def test_the_test_set_is_answered_in_parts_that_are_sent(engines):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1300, 4)).astype("float32"), np.arange(1300) % 3
    data = Dataset.of(x[:90], y[:90], x, y)
    s = settings({"data": data.name, "clients": 3, "partition": "iid", "model": "mlp_small"})
    task, recipe = build(s, dataset=data), parse("fedetf")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    engine = engines(recipe, task)
    toy.assert_same(engine.logits(task, net), LocalEngine().logits(task, net))
    worker = engine.session.ray.actors[0]._made
    assert len(worker.task.dataset.x) == len(worker.task.dataset.x_test) == 0


def test_held_out_samples_are_sent_once_and_are_answered_to_the_same_bits(engines):
    rng = np.random.default_rng(0)
    data = Dataset.of(rng.normal(size=(2600, 4)).astype("float32"), np.arange(2600) % 3)
    s = settings({"data": data.name, "clients": 3, "partition": "iid", "model": "mlp_small", "local_test": "0.6"})
    task, recipe = build(s, dataset=data), parse("fedtc")
    net = rounds.global_net(rounds.begin(recipe, task), recipe, task)
    engine = engines(recipe, task)
    positions = torch.from_numpy(np.concatenate([task.tests.parts[k] for k in range(3)]))
    assert len(positions) > 1024  # three parts
    expected = LocalEngine().logits(task, net, positions)
    for _ in range(2):
        toy.assert_same(engine.logits(task, net, positions), expected)
    sent = [value for value in map(from_array, engine.session.ray.stored) if set(value) == {"x", "y"}]
    assert sum(len(value["x"]) for value in sent) == len(positions)


# ---- shards
def test_samples_are_put_once_and_only_for_those_who_take_part(engines):
    task, recipe = toy.skewed(6, sampling=0.5), parse("fedavg")
    engine = engines(recipe, task)
    rounds.run(recipe, task, engine, 4)
    took_part = {k for t in range(4) for k in task.sampling(t)}
    samples = [value for value in map(from_array, engine.session.ray.stored) if set(value) == {"x", "y"}]
    assert len(samples) == len(took_part)
    assert sum(len(value["x"]) for value in samples) == sum(map(task.data.size, took_part))


def test_who_does_not_train_is_sent_labels_and_no_inputs(engines):
    task, recipe = toy.skewed(4), parse("fedavg")
    engine = engines(recipe, task)
    server = rounds.begin(recipe, task)
    engine.received(recipe, task, rounds.cast_of(server, recipe), range(4))
    sent = [value for value in map(from_array, engine.session.ray.stored) if set(value) == {"x", "y"}]
    sizes = sorted((len(value["x"]), len(value["y"])) for value in sent)
    labels = [(0, task.data.size(k)) for k in range(4)]
    tests = [(len(task.test(k)[1]),) * 2 for k in range(4)]
    assert sizes == sorted(labels + tests)


def test_what_was_not_asked_for_longest_leaves_the_object_store_first():
    task, put = toy.skewed(4), []
    size = Shards(lambda packed: packed.nbytes, task).train
    shards = Shards(lambda packed: put.append(packed) or len(put), task, budget=size(0) + size(1) + size(2) - 1)
    assert [shards.train(0), shards.train(1), shards.train(0)] == [1, 2, 1]
    assert shards.train(2) == 3  # over the budget: client 1 goes, and maybe client 0 after it
    assert ("train", 1) not in shards._stored
    assert shards._bytes == sum(nbytes for _, nbytes in shards._stored.values()) <= shards._budget
    assert shards.train(1) == 4  # and is put there again when it is asked for


def test_a_worker_takes_what_rests_on_its_node():
    class Placed:
        """The first two workers live on node a, the third on b."""

        made = 0

        def __init__(self, order):
            Placed.made += 1
            self.node = "aab"[Placed.made - 1]

        def ready(self):
            return json.dumps({"pid": 1, "node": self.node, "fault": ""})

    session = FakeSession()
    group = WorkerGroup(session, Placed, {}, 3, "cpu", 1, print)
    while group._starting:
        group._poll(0.0)
    last_nodes = {1: "b", 2: "a", 4: "a", 5: "gone"}
    queue = deque(range(6))
    assert [group._next_key("a", queue, last_nodes) for _ in range(6)] == [2, 4, 0, 3, 5, 1]
    assert not queue


# ---- deaths
class Mortal:
    """Workers on two nodes; the test ends them."""

    made = 0

    def __init__(self, order):
        Mortal.made += 1
        self.node = "ab"[Mortal.made % 2]

    def ready(self):
        return json.dumps({"pid": 1, "node": self.node, "fault": ""})

    identify = ready

    def work(self, key):
        return 2 * key


def test_a_node_that_died_between_rounds_does_not_end_the_run():
    session, said = FakeSession(), []
    group = WorkerGroup(session, Mortal, {}, 12, "cpu", 1, said.append)
    while group._starting:
        group._poll(0.0)
    for actor in session.ray.actors:
        actor.dead = actor._made.node == "a"
    assert dict(group.spread("work", range(4), lambda k: (k,), quiet, "client")) == {k: 2 * k for k in range(4)}
    assert 1 <= group.deaths <= 4  # those who were asked; the others of the node were looked after
    while group._starting:
        group._poll(0.0)
    assert len(group.workers) == 12  # and all of them replaced
    assert not any(worker.actor.dead for worker in group.workers)


def test_a_worker_whose_answer_is_lost_is_ended_and_replaced():
    session = FakeSession()
    group = WorkerGroup(session, Mortal, {}, 1, "cpu", 1, print)
    group.wait_for_first()
    first = session.ray.actors[0]
    real = session.ray.get
    lost = []

    def get(ref):
        if not lost and isinstance(ref.value, int):
            lost.append(ref)
            raise ActorDiedError  # the object is gone, the worker is not
        return real(ref)

    session.ray.get = get
    assert dict(group.spread("work", [3], lambda k: (k,), quiet, "client")) == {3: 6}
    assert first.dead  # it would have kept a CPU that its successor waits for
    assert len(session.ray.actors) == 2


def test_work_that_cannot_be_handed_out_loses_no_worker():
    session = FakeSession()
    group = WorkerGroup(session, Mortal, {}, 2, "cpu", 1, print)
    group.wait_for_first()

    def broken(key):
        raise EngineError("no room")

    with pytest.raises(EngineError, match="no room"):
        list(group.spread("work", [1, 2], broken, quiet, "client"))
    assert dict(group.spread("work", [1, 2], lambda k: (k,), quiet, "client")) == {1: 2, 2: 4}
    assert group.deaths == 0


def test_an_object_store_without_room_ends_in_a_sentence(engines):
    task, recipe = toy.skewed(3), parse("fedavg")
    engine = engines(recipe, task)

    def full(value):
        raise RayError("The object store is full.")

    engine.session.ray.put = full
    with pytest.raises(EngineError, match=r"do not fit into the object store .*--object-store-memory"):
        rounds.run(recipe, task, engine, 1)


def test_a_comparison_of_own_arrays_spreads_clients_instead_of_runs(engines, tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    data = Dataset.of(rng.normal(size=(90, 4)) + np.eye(3, 4)[y], y)
    how = {"data": data, "model": "mlp_small", "clients": 3, "rounds": 1, "partition": "iid"}
    local = compare(["fedavg", "scaffold"], out=tmp_path / "local", **how)
    import headway.engines.ray.session as session_module

    real = session_module.check_engine
    with pytest.MonkeyPatch.context() as patched:
        for module in ("headway.runs.runner", "headway.runs.compare"):
            patched.setattr(f"{module}.check_engine", lambda engine, address: real("local", None))
        spread = compare(["fedavg", "scaffold"], out=tmp_path / "ray", engine="ray", workers=2, **how)
    for row in local.rows:
        (run,), (other,) = row.runs, spread[row.recipe].runs
        assert (run.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()
        assert json.loads((other.path / "config.json").read_text())["options"]["engine"] == "ray"


def test_references_are_resolved_like_rays():
    """The stand-in itself: a value put there comes back, read-only."""
    session = FakeSession()
    ref = session.ray.put(np.zeros(2))
    assert isinstance(ref, Ref)
    assert session.ray.get(ref) is ref.value
