"""Workers: side by side, in any number and order, with a death among them, to the same bits."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import re
import weakref
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy

from headway import Dataset
from headway.base.errors import EngineError
from headway.engines import ClientStore, LocalEngine, PoolEngine, pool
from headway.engines.choice import engine_for
from headway.engines.transport import ALIGN, SharedBuffer
from headway.methods import recipe as parse
from headway.metrics.accuracy import global_score, received_score
from headway.models import net as net_module
from headway.runs.runner import Options, execute
from headway.training import rounds, tuning
from headway.training.settings import Settings, settings
from headway.training.task import Task, build
from headway.training.tuning import layout_for

RECIPES = ["fedavg", "scaffold+fn", "moon", "fedrep", "fedtc", "fedproto", "ditto", "fednh", "local"]


@pytest.fixture(scope="module")
def task():
    return toy.skewed(6, sampling=0.67, momentum=0.9, weight_decay=1e-3, train_size=300, augment="flip")


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


def test_clients_whose_notes_fit_nowhere_wait_until_their_worker_reads(monkeypatch):
    """Everything is sent in the messages: a worker that answers and a run that sends must not wait for each other."""
    monkeypatch.setattr(pool, "SLOT_MODELS", (0,))
    monkeypatch.setattr(pool, "SPARE_BYTES", 64)
    wide = toy.skewed(12, model="mlp", train_size=240)
    recipe = parse("scaffold")
    alone = LocalEngine()
    expected = toy.state_of(rounds.run(recipe, wide, alone, 3), alone)
    with closing(PoolEngine(recipe, wide, 2)) as engine:
        toy.assert_same(toy.state_of(rounds.run(recipe, wide, engine, 3), engine), expected)
        assert engine.store.get(0).kept["scaffold"]["c"].nbytes() > pool.SMALL  # too large to wait in a pipe


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
    sizes, send = [], pool.Worker.send

    def noted(self, message):
        if message[0] == "train":
            sizes.append(sum(map(task.data.size, message[1])))
        send(self, message)

    monkeypatch.setattr(pool.Worker, "send", noted)
    rounds.run(recipe, task, pooled(recipe, task, 2), 2)
    first, second = sizes[:12], sizes[12:]  # of each round
    assert first == second == sorted(first, reverse=True)
    assert len(set(first)) > 6


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_workers_share_the_data_and_hold_no_copy(pooled):
    def most(field, each):
        """The most of this that a worker holds in memory where a client has so many samples, in bytes."""
        y = torch.arange(50 * each) % 2
        x = torch.randn(len(y), 1000)
        parts = [range(k * each, (k + 1) * each) for k in range(50)]
        task, recipe = toy.task_of(x, y, parts, sampling=0.2, batch_size=50), parse("fedavg")
        gc.collect()
        gc.freeze()  # a worker's collector would make the objects of all tests before this one its own
        engine = pooled(recipe, task, 2)
        gc.unfreeze()
        rounds.run(recipe, task, engine, 2)
        told = [Path(f"/proc/{worker.pid}/smaps_rollup").read_text() for worker in engine.workers]
        return max(1024 * int(re.search(rf"^{field}: +(\d+) kB", text, re.MULTILINE)[1]) for text in told)

    few, many = most("Private_Dirty", 5), most("Private_Dirty", 500)  # 1 MB of data, and 100 MB
    assert many < few + 50e6  # what the run before it left in memory is in both: a copy would be another 100 MB
    assert most("Rss", 500) > 100e6  # the data are there


def test_closing_leaves_no_process_behind(task):
    engine = PoolEngine(parse("fedavg"), task, 2)
    pids = [w.pid for w in engine.workers]
    engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


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
    buffers = [weakref.ref(room._memory) for room in [engine.cast_buffer, *engine.slots, *engine.inboxes[0]]]
    engine.close()
    assert [room() for room in buffers] == [None] * len(buffers)  # at once: the collector comes when it likes


def test_a_finished_run_leaves_no_shared_memory_behind(tmp_path):
    gc.collect()
    gc.disable()
    try:
        s = settings({"clients": 3, "rounds": 1, "train_size": 90, "model": "mlp_small"})
        execute("fedavg", s, tmp_path / "a", Options(workers=2))
        assert not [o for o in gc.get_objects() if type(o) is SharedBuffer and o.size > ALIGN]
    finally:
        gc.enable()


def test_where_less_memory_may_be_named_rooms_are_smaller_and_bits_the_same(task, monkeypatch):
    recipe, alone, asked = parse("scaffold"), LocalEngine(), []
    expected = toy.state_of(rounds.run(recipe, task, alone, 2), alone)
    real = SharedBuffer.allocate

    def limited(count, size):
        asked.append(size)
        if len(asked) == 1:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(count, size)

    monkeypatch.setattr(SharedBuffer, "allocate", limited)
    with closing(PoolEngine(recipe, task, 2)) as engine:
        toy.assert_same(toy.state_of(rounds.run(recipe, task, engine, 2), engine), expected)
    assert asked[1] < asked[0]

    def none(count, size):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(SharedBuffer, "allocate", none)
    with pytest.raises(EngineError, match=r"workers need .* GB of address space .*; give workers=1, or raise"):
        PoolEngine(recipe, task, 2)
