"""The bench measures what it says: the same local steps on both sides, medians, memory of the whole family."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from calling import headway
from rich.console import Console

from headway import rounds
from headway.bench import anchor, memory, report, runner, subject
from headway.bench.rows import GROUPS, Row
from headway.bench.workloads import (
    PARTICIPANTS,
    SAMPLES_EACH,
    WORKLOADS,
    capped,
    growing_task,
    noise,
    plain_model,
    task_of,
    uncached,
)
from headway.client import first_client, personal_net
from headway.data.partition import draw
from headway.engine import LocalEngine
from headway.methods import recipe
from headway.settings import Settings
from headway.task import build


@pytest.fixture(scope="module")
def data():
    return noise(train=600, test=20)


def small(name, **changes):
    """The workload with fewer clients and samples."""
    w = WORKLOADS[name]
    s = Settings(**(w.settings.model_dump() | changes))
    return replace(w, settings=s, rounds=1)


def turn_of(seconds, rounds=1, foreign=0.0):
    return {"seconds": seconds, "rounds": rounds, "samples": 100, "faults": 8, "cpu_seconds": 1.0, "foreign": foreign}


# ---- both sides do the same work
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("w1", {"clients": 4, "partition": "dir(0.5)"}),
        ("w2", {"clients": 10, "partition": "iid", "batch_size": 30, "sampling": 0.2}),
        ("w3", {"clients": 12, "sampling": 0.25}),
    ],
)
def test_anchor_and_headway_make_the_same_steps_on_the_same_samples(data, name, changes):
    w = small(name, **changes)
    task = task_of(w, data)
    server = rounds.begin(recipe("fedavg"), task)
    _, _, reports = rounds.run_round(server, recipe("fedavg"), task, LocalEngine())
    loop = anchor.PlainLoop(plain_model(w, data.shape, 10), 0.01, 0.9, 5e-4)
    steps, samples = loop.run(anchor.shards(task, 0), task.batch_size)
    assert steps == sum(r.steps for r in reports)
    assert samples == sum(r.n for r in reports)
    assert samples == sum(task.data.size(k) for k in task.sampling(0))


@pytest.mark.parametrize("name", ["w1", "w3"])
def test_one_client_and_one_round_of_headway_are_the_anchor_bit_for_bit(data, name):
    w = small(name, clients=1, partition="iid", sampling=1.0)
    s = w.settings
    task = build(s, dataset=data, partition=capped(draw("iid", data.y.numpy(), 1, 0, classes=10), 100, 64))
    server = rounds.begin(recipe("fedavg"), task)
    model = plain_model(w, data.shape, 10)
    with torch.no_grad():
        for p, first in zip(model.parameters(), server.w.values(), strict=True):
            p.copy_(first)
    anchor.PlainLoop(model, s.lr, s.momentum, s.weight_decay).run(anchor.shards(task, 0), s.batch_size)
    after, _, _ = rounds.run_round(server, recipe("fedavg"), task, LocalEngine())
    for p, first, last in zip(model.parameters(), server.w.values(), after.w.values(), strict=True):
        assert not torch.equal(first, last)
        assert torch.equal(p, last)


def test_arithmetic_of_the_models_is_that_of_the_literature():
    million = {"w1": 43.2, "w2": 242, "w3": 2.5}  # forward and backward of one sample
    for name, expected in million.items():
        model = plain_model(WORKLOADS[name], (3, 32, 32), 10)
        assert anchor.flop_per_sample(model, (3, 32, 32), 10, 2) / 1e6 == pytest.approx(expected, rel=0.03)


# ---- workloads
def test_nobody_has_more_than_allowed_and_no_batch_of_one_is_left(data):
    whole = draw("iid", data.y.numpy(), 6, 0, classes=10)  # 100 samples each
    assert capped(whole, 50, 7).sizes().tolist() == [49] * 6  # 50 = 7 * 7 + 1: the one is dropped
    part = capped(whole, 40, 64)
    assert part.sizes().tolist() == [40] * 6
    assert all(np.isin(mine, theirs).all() for mine, theirs in zip(part, whole, strict=True))
    assert len(np.unique(part.index)) == 240


def test_a_growing_federation_stores_nothing_a_client(data):
    small, large = growing_task(100, data), growing_task(100_000, data)
    for task in (small, large):
        assert len(task.sampling(0)) == PARTICIPANTS
        assert {task.data.size(k) for k in task.sampling(0)} == {SAMPLES_EACH}
    assert large.data.parts.index.nbytes == 0
    assert large.data.parts[99_999].max() < 600
    assert len(large.data[99_999][1]) == SAMPLES_EACH


def test_without_cached_features_the_head_learns_the_same(data):
    parsed = recipe("fedrep(head_epochs=3)")
    task = task_of(small("w1", clients=20, partition="iid"), data)
    cast = rounds.cast_of(rounds.begin(parsed, task), parsed)
    client = first_client(parsed, task, cast, 0)
    heads = []
    for way in (task, uncached(task)):
        *_, (_, net) = personal_net(parsed, way, cast, client, parsed.phases(1)[:1])
        heads.append(net.params()["head.weight"].detach())
    assert torch.allclose(*heads, atol=1e-6)
    assert not torch.equal(heads[0], client.personal["head.weight"])


@pytest.mark.parametrize(("name", "stages"), [("fedrep", ["head"]), ("fedetf", ["A", "B"] * 5)])
def test_head_only_work_is_ten_epochs_that_leave_the_body_alone(name, stages):
    work = subject.HeadOnly(name, noise(train=2000, test=20), cache=True)
    assert work.about["epochs"] == 10
    assert [phase.stage.rstrip("12345") for phase in work.phases] == stages


# ---- figures
def test_ratios_are_of_medians_a_round():
    ours = runner.Measured("ours", {}, [turn_of(2.0, 2), turn_of(4.0, 2), turn_of(60.0, 2)])  # 1, 2 and 30 s a round
    loop = runner.Measured("loop", {}, [turn_of(5.0), turn_of(4.0), turn_of(1.0)])
    assert (ours.per_round, loop.per_round) == (2.0, 4.0)
    assert runner.ratio(ours, loop) == 0.5
    assert ours.faults == 4


def test_the_least_disturbed_cycles_count():
    assert runner.quietest([0.0, 0.5, 0.02, 0.9, 0.01], 3) == [0, 2, 4]
    assert runner.quietest([0.3], 2) == [0]


def test_targets_are_upper_or_lower_bounds():
    assert Row("a", "", 0.6, 0.67).met
    assert not Row("a", "", 0.7, 0.67).met
    assert Row("a", "", 9.0, 8.0, at_least=True).met
    assert Row("a", "", 9.0).met is None


def test_table_and_history_say_the_same(tmp_path, monkeypatch):
    turn = runner.Measured("x", {"processes": 2}, [turn_of(1.0, foreign=0.4)]).record() | {"share_of_peak": 0.5}
    details = {"loop": turn, "headway": turn, "peak_gflops": 100.0, "data": "random"}
    monkeypatch.setitem(GROUPS, "w1", lambda how: [Row("w1", "about", 0.5, 0.67, details=details)])
    out = tmp_path / "history.jsonl"
    end = headway("bench", "--only", "W1", "--json", "--out", out)
    assert end.code == 0
    assert end.json == json.loads(out.read_text())
    assert end.json["machine"]["cores"] == len(os.sched_getaffinity(0))
    headway("bench", "--only", "w1", "--json", "--out", out)
    assert len(out.read_text().splitlines()) == 2
    console = Console(file=io.StringIO(), width=200)
    report.show(console, end.json)
    text = console.file.getvalue()
    for words in ("0.500 x", "<= 0.670 x", "yes", "50 %", "random images", "40 % of the cores"):
        assert words in text


# ---- processes
def test_a_subject_speaks_lines_of_json():
    call = [sys.executable, "-m", "headway.bench.subject", "peak", "random", "auto"]
    end = subprocess.run(call, input="go\n", capture_output=True, text=True, check=True, cwd=os.getcwd())
    about, turn = map(json.loads, end.stdout.splitlines())
    assert about["threads"] >= 1
    assert turn["gflops"] > 0
    assert turn["cpu_seconds"] > 0
    assert 0 <= turn["foreign"] <= 1


def test_memory_of_a_family_counts_children_and_shared_pages_once():
    grow = (
        "import os, sys, mmap\n"
        "room = mmap.mmap(-1, 64 << 20); room.write(b'x' * (64 << 20))\n"  # shared with the child, written by both
        "child = os.fork()\n"
        "own = b'y' * (32 << 20) if child == 0 else b''\n"
        "_ = room[:] and None\n"
        "print('ready', flush=True) if child == 0 else None\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", grow], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        assert len(memory.family(process.pid)) == 2
        megabytes = memory.own_bytes(process.pid) / 2**20
        assert 96 < megabytes < 150  # 64 shared + 32 of the child, and two small interpreters
        assert memory.file_bytes(process.pid) > 2**20
        assert memory.used(process.pid).faults > (96 << 20) / 4096 / 2
    finally:
        process.communicate()


def test_a_subject_that_fails_says_why(tmp_path, monkeypatch):
    (tmp_path / "headway").mkdir()
    (tmp_path / "headway" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    monkeypatch.chdir(tmp_path)  # the package under test is measured, wherever the user stands
    with pytest.raises(RuntimeError, match="nonsense"):
        runner.Live("nonsense", "random", "auto").__enter__()


# ---- what users may get wrong
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--only", "w4"), "only=w4: there is no measurement 'w4'; known: w1, w2, w3, methods, heads"),
        (("--only", ""), "only=: there is no measurement ''"),
        (("--repeats", "0"), "repeats=0: repeats must be a whole number from 1 to 1000"),
        (("--repeats", "many"), "repeats=many"),
        (("--workers", "0"), "workers=0: workers must be a whole number from 1"),
        (("--out", "missing/folder/history.jsonl"), "out=missing/folder/history.jsonl: it cannot be written"),
        (("--out", " "), "out=' ': it is empty"),
        (("--nope",), "No such option '--nope'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(words, sentence):
    end = headway("bench", *words)
    assert end.code == 2
    assert end.out == ""
    assert end.err.startswith(f"headway: {sentence}")
    assert end.err.count("\n") == 1
