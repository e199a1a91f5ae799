"""Workers: side by side, in any number and order, with a death among them, to the same bits."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import re
import signal
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy

from headway import Dataset, rounds, tuning
from headway.diagnostics.accuracy import global_score, received_score
from headway.engine import ClientStore, LocalEngine, PoolEngine, pool, transport
from headway.engine.choice import engine_for
from headway.engine.transport import ALIGN, Room
from headway.errors import EngineError
from headway.experiment import Options, execute, resume
from headway.methods import recipe as parse
from headway.models import net as net_module
from headway.settings import Settings, settings
from headway.task import Task, build
from headway.tree import Tree
from headway.tuning import layout_for

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


def test_clients_whose_notes_fit_nowhere_wait_until_their_worker_reads(monkeypatch):
    """All travels in the messages: a worker that answers and a run that hands out must not wait for each other."""
    monkeypatch.setattr(pool, "SLOT_MODELS", (0,))
    monkeypatch.setattr(pool, "SPARE_BYTES", 64)
    wide = toy.skewed(12, model="mlp", train_size=240)
    recipe = parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, wide, alone, 3), alone)
    with closing(PoolEngine(recipe, wide, 2)) as engine:
        toy.assert_same(toy.state_of(rounds.run(recipe, wide, engine, 3), engine), expected)
        assert engine.store.get(0).kept["scaffold"]["c"].nbytes() > pool.SMALL  # too large to wait in a pipe


def test_a_worker_that_dies_before_an_evaluation_is_replaced_and_told_of(monkeypatch):
    monkeypatch.setattr(net_module.chunks, "__defaults__", (100,))  # 359 digits in four parts
    digits, recipe, told = toy.skewed(4, train_size=200), parse("fedavg"), []
    net = rounds.global_net(rounds.begin(recipe, digits), recipe, digits)
    with closing(PoolEngine(recipe, digits, 2, say=told.append)) as engine:
        os.kill(engine.workers[0].pid, signal.SIGKILL)
        os.waitpid(engine.workers[0].pid, 0)
        toy.assert_same(engine.logits(digits, net), LocalEngine().logits(digits, net))
        assert (engine.deaths, told) == (1, ["a worker died; its part of the test set is judged again"])


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
    train = pool.train_client

    def train_all_but_2(recipe, task, cast, client, **given):
        return ends_its_worker() if client.id == 2 else train(recipe, task, cast, client, **given)

    monkeypatch.setattr(pool, "train_client", train_all_but_2)
    sentence = (
        "engine=local: client 2 ended 3 workers, one after another; the machine may be out of memory: give fewer "
        "--workers or more memory, then `headway resume` the run"
    )
    with pytest.raises(EngineError) as told:
        execute("scaffold", s, out, Options(workers=2))
    assert (str(told.value), told.value.exit_code) == (sentence, 2)
    monkeypatch.setattr(pool, "train_client", train)
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
        pytest.raises(EngineError, match=r"engine=local: the evaluation ended 3 workers, .* fewer --workers .* resume"),
    ):
        engine.logits(digits, net)


@pytest.mark.parametrize("text", ["scaffold+fn", "fedrep", "fednh", "ccvr"])
def test_workers_with_a_device_each_train_to_the_same_bits(text, task):
    """Two processors stand in for two GPUs: every worker brings data, nets, broadcast and notes to its own."""
    recipe, devices = parse(text), (torch.device("cpu"), torch.device("cpu", 0))
    alone = LocalEngine()
    server = rounds.run(recipe, task, alone, 3)
    spread = replace(task, gpus=devices)
    engine = engine_for(recipe, spread, Options(workers=None), ClientStore(), lambda done, total: None)
    try:
        assert isinstance(engine, PoolEngine)
        assert len(engine.workers) == 2
        again = rounds.run(recipe, spread, engine, 3)
        toy.assert_same(toy.state_of(again, engine), toy.state_of(server, alone))
        nets = [rounds.finish(s, recipe, t, e) for s, t, e in ((server, task, alone), (again, spread, engine))]
        toy.assert_same(*(net.tensors() for net in nets))
        toy.assert_same(*(e.logits(task, net) for e, net in zip((alone, engine), nets, strict=True)))
    finally:
        engine.close()


def test_several_gpus_are_one_worker_each_and_the_run_stays_on_the_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    whole = build(Settings(clients=4, train_size=90, amp=True), device="cuda")
    assert whole.gpus == tuple(torch.device("cuda", i) for i in range(3))
    assert (whole.device.type, whole.accelerator, whole.data.x.device.type) == ("cpu", "cuda", "cpu")
    monkeypatch.setattr(Task, "on", lambda self, device: replace(self, device=torch.device("cpu"), gpus=()))
    assert whole.in_one_process().gpus == ()
    conv = replace(build(Settings(clients=4, train_size=90, model="resnet8")), gpus=whole.gpus)
    assert layout_for(conv, tmp_path) in tuning.WAYS_TO_RUN  # timed in a process of its own
    (found,) = (tmp_path / "tuning").iterdir()
    assert json.loads(found.read_text())["device"] == "cuda"


def test_the_largest_clients_are_handed_out_first(pooled, monkeypatch):
    """A large client begun last would keep one worker busy while all others have nothing left to do."""
    task, recipe = toy.skewed(12, train_size=400), parse("scaffold")
    handed, tell = [], pool.Worker.tell

    def noted(self, message):
        if message[0] == "train":
            handed.append(task.data.size(message[1]))
        tell(self, message)

    monkeypatch.setattr(pool.Worker, "tell", noted)
    rounds.run(recipe, task, pooled(recipe, task, 2), 2)
    first, second = handed[:12], handed[12:]  # of each round
    assert first == second == sorted(first, reverse=True)
    assert len(set(first)) > 6


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_workers_share_the_data_and_hold_no_copy(pooled):
    width, each, clients = 1000, 500, 50
    y = torch.arange(clients * each) % 2
    x = torch.randn(len(y), width)  # 100 MB, of which a client holds 2
    parts = [range(k * each, (k + 1) * each) for k in range(clients)]
    task, recipe = toy.task_of(x, y, parts, sampling=0.2), parse("fedavg")
    gc.collect()
    gc.freeze()  # a worker's collector would make the objects of all tests before this one its own
    engine = pooled(recipe, task, 2)
    gc.unfreeze()
    rounds.run(recipe, task, engine, 2)
    assert x.nbytes == 100_000_000
    for worker in engine.workers:
        told = Path(f"/proc/{worker.pid}/smaps_rollup").read_text()
        size = {field: 1024 * int(number) for field, number in re.findall(r"^(\w+): +(\d+) kB", told, re.MULTILINE)}
        assert size["Rss"] > x.nbytes  # the data are there
        assert size["Private_Dirty"] < x.nbytes / 2  # and are not its own


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


def test_answers_to_the_test_set_leave_a_rounds_reports_alone():
    """Whoever watches a round looks at its reports after the evaluation, which workers answer too."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1300, 4)).astype("float32"), np.arange(1300) % 3
    data = Dataset.of(x[:90], y[:90], x, y)  # a test set in three parts
    s = settings({"data": data.name, "clients": 4, "partition": "iid", "model": "mlp_small"})
    task, recipe = build(s, dataset=data), parse("fedavg")
    with closing(PoolEngine(recipe, task, 2)) as engine:
        server, _, reports = rounds.run_round(rounds.begin(recipe, task), recipe, task, engine)
        before = copy.deepcopy(reports)
        engine.logits(task, rounds.global_net(server, recipe, task))
        engine.received(recipe, task, rounds.cast_of(server, recipe), range(4))
        toy.assert_same(reports, before)


@pytest.mark.parametrize("text", ["fedavg", "fedtc"])
def test_held_out_samples_are_answered_in_parts_to_the_same_counts(text, pooled, monkeypatch):
    """Clients that share a model are judged in one pass, by as many hands as there are."""
    monkeypatch.setattr(net_module.chunks, "__defaults__", (40,))
    task, recipe = toy.skewed(5, train_size=300, local_test="0.5"), parse(text)
    server = rounds.begin(recipe, task)
    net = rounds.global_net(server, recipe, task)
    ids = [k for k in task.everyone() if len(task.tests.parts[k])]
    engine, alone = pooled(recipe, task, 2), LocalEngine()
    score = global_score(net, alone, task)
    mine, theirs = (received_score(server, recipe, task, e, net, score, ids) for e in (alone, engine))
    assert theirs == mine
    each = {k: int((net.eval().personal(task.test(k)[0]).argmax(1) == task.test(k)[1]).sum()) for k in ids}
    assert mine.correct == each
    positions = torch.from_numpy(np.concatenate([task.tests.parts[k] for k in ids]))
    assert len(positions) > 80  # three parts at least
    toy.assert_same(engine.logits(task, net, positions), alone.logits(task, net, positions))


def test_closing_lets_go_of_shared_memory(task):
    engine = PoolEngine(parse("fedavg"), task, 2)
    rooms = [weakref.ref(room._memory) for room in [engine.cast_room, *engine.slots, *engine.inboxes[0]]]
    engine.close()
    assert [room() for room in rooms] == [None] * len(rooms)  # at once: the collector comes when it likes


def test_a_finished_run_leaves_no_shared_memory_behind(tmp_path):
    gc.collect()
    gc.disable()
    try:
        s = settings({"clients": 3, "rounds": 1, "train_size": 90, "model": "mlp_small"})
        execute("fedavg", s, tmp_path / "a", Options(workers=2))
        assert not [o for o in gc.get_objects() if type(o) is Room and o.size > ALIGN]
    finally:
        gc.enable()


@pytest.mark.parametrize(("most", "mappings"), [(20_000, 3), (2, 2), (1, 1)])
def test_rooms_share_mappings_only_where_there_are_many_and_do_not_overlap(most, mappings, monkeypatch):
    monkeypatch.setattr(transport, "MOST_MAPPINGS", most)
    rooms = Room.several(3, 100)
    told = [room.pack({"a": torch.full((20,), float(i))}) for i, room in enumerate(rooms)]
    for i, room in enumerate(rooms):
        assert room.unpack(told[i])["a"].tolist() == [float(i)] * 20
    assert len({id(room._memory) for room in rooms}) == mappings


def test_where_less_memory_may_be_named_rooms_are_smaller_and_bits_the_same(task, monkeypatch):
    recipe, alone, asked = parse("scaffold"), LocalEngine(), []
    expected = toy.state_of(rounds.run(recipe, task, alone, 2), alone)
    real = Room.several

    def limited(count, size):
        asked.append(size)
        if len(asked) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(count, size)

    monkeypatch.setattr(Room, "several", limited)
    with closing(PoolEngine(recipe, task, 2)) as engine:
        toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 2), engine), expected)
    assert asked[1] < asked[0]

    def none(count, size):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(Room, "several", none)
    with pytest.raises(EngineError, match=r"workers share .* GB .*; give --workers 1, or allow it more"):
        PoolEngine(recipe, task, 2)


class Oops(Exception):
    """Its constructor takes two, and pickle gives it one."""

    def __init__(self, layer, seen):
        super().__init__(f"layer {layer} saw {seen}")


def test_a_workers_error_with_a_constructor_of_its_own_keeps_its_words(task, monkeypatch):
    def fails(*args, **given):
        raise Oops(1, 2)

    monkeypatch.setattr(pool, "train_client", fails)
    with closing(PoolEngine(parse("fedavg"), task, 2)) as engine, pytest.raises(RuntimeError, match="layer 1 saw 2"):
        rounds.run(parse("fedavg"), task, engine, 1)
