"""The bench measures what it says: the same local steps on both sides, medians, memory of the whole family."""

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from calling import headway
from rich.console import Console

from headway.bench import anchor, memory, peak, report, runner, subject
from headway.bench.rows import GROUPS, How, Row, against_loop, peaks, shares
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
from headway.data.partitions.partition import draw
from headway.engines import LocalEngine
from headway.methods import recipe
from headway.models.native import build as building
from headway.training import rounds
from headway.training.client import first_client, personal_net
from headway.training.settings import Settings
from headway.training.task import build

needs_compiler = pytest.mark.skipif(building.compiler() is None, reason="the kernel is built by a C++ compiler")
HISTORY = Path(__file__).parents[2] / "bench" / "history.jsonl"


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


def shown(result):
    console = Console(file=io.StringIO(), width=300)
    report.show(console, result)
    return console.file.getvalue()


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
    last = model[-1]
    last.forward = lambda h: h @ last.weight.T + last.bias  # as headway's: some BLAS add a bias inside the product
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
    turn = runner.Measured("x", {"processes": 2}, [turn_of(1.0, foreign=0.4)]).record()
    turn |= {"share_of_peak": 0.75, "share_of_fma_peak": 0.5}
    details = {"loop": turn, "headway": turn, "peak_gflops": 100.0, "fma_gflops": 150.0, "data": "random"}
    monkeypatch.setitem(GROUPS, "w1", lambda how: [Row("w1", "about", 0.5, 0.67, details=details)])
    out = tmp_path / "history.jsonl"
    end = headway("bench", "--only", "W1", "--json", "--out", out)
    assert end.code == 0
    assert end.json == json.loads(out.read_text())
    assert end.json["machine"]["cores"] == len(os.sched_getaffinity(0))
    headway("bench", "--only", "w1", "--json", "--out", out)
    assert len(out.read_text().splitlines()) == 2
    text = shown(end.json)
    for words in ("0.500 x", "<= 0.670 x", "yes", "50 %", "random images", "40 % of the cores"):
        assert words in text


# ---- shares of the peak
@needs_compiler
def test_the_kernel_counts_the_multiply_adds_it_makes():
    kernel = peak.kernel()
    step = kernel.multiply_adds_per_step()
    assert step in (16 * 16, 8 * 12, 4 * 12, 4 * 16)  # lanes times sums: AVX-512, AVX, SSE, others
    assert [kernel.multiply_adds(n) for n in (0, 1, 5)] == [0, step, 5 * step]
    assert kernel.multiply_adds(max(peak.LENGTHS)) == max(peak.LENGTHS) * step  # the longest turn is not too long


@needs_compiler
def test_the_fma_peak_of_this_machine_is_a_number():
    assert peak.why_missing() is None
    assert 0 < peak.fma_gflops(2, lengths=(64, 128), total=256) < float("inf")


def test_the_best_turn_of_all_threads_together_is_the_peak(monkeypatch):
    called = []

    class Kernel:
        def multiply_adds(self, steps):
            called.append(steps)
            return 10**9

    clock = iter([0.0, 4.0, 10.0, 12.0, 20.0, 21.0])  # turns of 4, 2 and 1 s
    monkeypatch.setattr(peak, "kernel", Kernel)
    monkeypatch.setattr(peak, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert peak.fma_gflops(3, lengths=(4, 8), total=8) == 6.0  # 3 threads x 2 x 1e9 operations in 1 s
    assert called == [4] * 6 + [8] * 3


def test_shares_by_hand():
    assert peak.gflops(3 * 10**9, 2.0) == 3.0  # 2 x 3e9 operations in 2 s
    known = {"peak_gflops": 100.0, "fma_gflops": 125.0}
    found = shares(1000.0, 50e6, known)  # 1000 samples/s x 50 MFLOP = 50 GFLOP/s
    assert found == {"share_of_peak": 0.5, "share_of_fma_peak": 0.4}
    assert shares(1000.0, 50e6, known | {"fma_gflops": None})["share_of_fma_peak"] is None


def test_the_fma_peak_is_the_best_turn_and_the_matrix_product_the_median():
    turns = [{"gflops": a, "fma_gflops": b} for a, b in ((80.0, 120.0), (90.0, 125.0), (100.0, 110.0))]
    found = peaks(runner.Measured("peak", {"fma_missing": None}, turns))
    assert found == {"peak_gflops": 90.0, "fma_gflops": 125.0, "fma_missing": None}


def test_a_workload_carries_both_peaks_and_both_shares(monkeypatch):
    common = {"data": "cifar10", "flop_per_sample": 50e6, "workers_ready": 0.1, "layout": "channels_first"}

    def measured(name, seconds, **about):
        return runner.Measured(name, common | about, [turn_of(seconds) | {"gflops": 100.0, "fma_gflops": 125.0}])

    turns = {  # 100 samples each: 200, 1000 and 100 a second
        "anchor:w1": measured("anchor:w1", 0.5, threads=2),
        "headway:w1:fedavg": measured("headway:w1:fedavg", 0.1),
        "anchor:w1:1": measured("anchor:w1:1", 1.0, threads=1),
        "peak": measured("peak", 1.0, fma_missing=None),
    }
    monkeypatch.setattr(How, "alternate", lambda self, *names: {name: turns[name] for name in names})
    details = against_loop("w1", How(1))[0].details
    assert (details["peak_gflops"], details["fma_gflops"]) == (100.0, 125.0)
    for who, product, fma in (("loop", 0.1, 0.08), ("headway", 0.5, 0.4)):  # 10 and 50 GFLOP/s
        assert details[who]["share_of_peak"] == pytest.approx(product)
        assert details[who]["share_of_fma_peak"] == pytest.approx(fma)


def of_one_workload(**known):
    turn = runner.Measured("x", {"processes": 2}, [turn_of(1.0)]).record() | shares(1000.0, 50e6, known)
    row = Row("w1", "about", 0.5, details={"loop": turn, "headway": turn, "data": "cifar10"} | known)
    return report.record([row], ["w1"], 1)


def test_both_peaks_are_told():
    text = shown(of_one_workload(peak_gflops=100.0, fma_gflops=125.0, fma_missing=None))
    assert "share of FMA peak" in text
    assert " 40 % " in text  # 50 of 125
    assert "the FMA peak is 125 GFLOP/s" in text
    assert "best matrix product: 100 GFLOP/s, 80 % of the FMA peak" in text


def test_without_a_compiler_shares_are_of_the_best_matrix_product(monkeypatch):
    peak.kernel.cache_clear()
    monkeypatch.setattr(building, "compiler", lambda: None)
    monkeypatch.setattr(subject, "GEMM", 8)
    made = subject.Peak(torch.get_num_threads())
    why = made.about["fma_missing"]
    assert why == "peak.cpp needs a C++ compiler and there is none; install g++"
    turn = subject.timed(made)
    assert turn["fma_gflops"] is None
    found = peaks(runner.Measured("peak", made.about, [turn]))
    assert found == {"peak_gflops": turn["gflops"], "fma_gflops": None, "fma_missing": why}
    text = shown(of_one_workload(**found | {"peak_gflops": 100.0}))
    assert "share of matrix product" in text
    assert " 50 % " in text  # 50 of 100
    assert f"shares are of the best matrix product, 100 GFLOP/s, as the FMA peak is not known: {why}\n" in text


@pytest.mark.parametrize("line", HISTORY.read_text().splitlines())
def test_every_line_of_the_history_can_be_shown(line):
    assert "share of" in shown(json.loads(line))


def test_a_record_from_before_the_fma_peak_can_be_shown():
    old = of_one_workload(peak_gflops=100.0, fma_gflops=None)
    for details in (row["details"] for row in old["rows"]):
        del details["fma_gflops"], details["loop"]["share_of_fma_peak"], details["headway"]["share_of_fma_peak"]
    text = shown(old)
    assert " 50 % " in text
    assert "100 GFLOP/s, as the FMA peak is not known: this record has none" in text


# ---- processes
def test_a_subject_speaks_lines_of_json():
    call = [sys.executable, "-m", "headway.bench.subject", "peak", "random", "auto"]
    end = subprocess.run(call, input="go\n", capture_output=True, text=True, check=True, cwd=os.getcwd())
    about, turn = map(json.loads, end.stdout.splitlines())
    assert about["threads"] >= 1
    assert turn["gflops"] > 0
    assert (about["fma_missing"] is None) == (turn["fma_gflops"] is not None)
    assert turn["cpu_seconds"] > 0
    assert 0 <= turn["foreign"] <= 1


def test_memory_of_a_family_counts_children_and_shared_pages_once():
    grow = (
        "import os, sys, mmap\n"
        "room = mmap.mmap(-1, 64 << 20); room.write(b'x' * (64 << 20))\n"  # shared with the child, used by both
        "child = os.fork()\n"
        "own = b'y' * (32 << 20) if child == 0 else b''\n"
        "_ = room[::4096]\n"  # touches every page; a copy of the room in either process would count as well
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
