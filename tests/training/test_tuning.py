"""The layout of images and torch.compile: chosen by time, remembered, written down, kept by a resumed run."""

from __future__ import annotations

import json
import multiprocessing
import time
from contextlib import closing

import pytest
import torch
import toy

import headway
from headway.engines import LocalEngine
from headway.engines.pool import PoolEngine
from headway.methods import recipe as parse
from headway.runs.run import Run
from headway.runs.runner import Options
from headway.training import rounds, tuning
from headway.training.settings import settings
from headway.training.task import build

UNITED = "channels_last+native"
CONV = {"data": "digits", "model": "resnet8", "clients": 3, "train_size": 90, "test_size": 50, "rounds": 2}


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Seconds by layout, instead of a clock; counts how often they were asked for. Compiling fails unless timed."""
    asked = []

    def set_to(first, last, compiled=None, united=1e9):
        def measured(task, ways):
            asked.append(task)
            seconds = {"channels_first": first, "channels_last": last, UNITED: united}
            return {way: seconds[way] for way in ways}

        def apart(task, ways):
            if not ways[-1].endswith(tuning.COMPILED):
                return measured(task, ways)
            eager = {"channels_first": first, "channels_last": last, UNITED: united}[ways[0]]
            return {} if compiled is None else dict(zip(ways, (eager, compiled), strict=True))

        monkeypatch.setattr(tuning, "measured", measured)
        monkeypatch.setattr(tuning, "measured_apart", apart)
        monkeypatch.setattr(tuning, "compiler", lambda: "g++")
        monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
        return asked

    return set_to


def task():
    return build(settings(CONV))


def test_the_faster_layout_is_taken_and_remembered(timed, tmp_path):
    asked = timed(1.0, 0.5)
    assert tuning.layout_for(task(), tmp_path) == "channels_last"
    assert tuning.layout_for(task(), tmp_path) == "channels_last"
    assert len(asked) == 1
    (record,) = (tmp_path / "tuning").iterdir()
    seconds = json.loads(record.read_text())["seconds"]
    assert (seconds["channels_first"], seconds["channels_last"]) == (1.0, 0.5)


def test_a_toss_of_a_coin_changes_nothing(timed, tmp_path):
    timed(1.0, 0.97)
    assert tuning.layout_for(task(), tmp_path) == "channels_first"


def test_a_damaged_record_is_measured_again(timed, tmp_path):
    asked = timed(1.0, 0.5)
    tuning.layout_for(task(), tmp_path)
    next((tmp_path / "tuning").iterdir()).write_text("{")
    assert tuning.layout_for(task(), tmp_path) == "channels_last"
    assert len(asked) == 2


def test_tables_have_no_layout(timed, tmp_path):
    asked = timed(1.0, 0.5)
    table = toy.task_of([[1.0, 2.0], [3.0, 4.0]], [0, 1], [[0], [1]])
    assert tuning.layout_for(table, tmp_path) == "channels_first"
    assert not asked
    assert table.in_layout("channels_last") is table


def test_it_really_measures_both():
    seconds = tuning.measured(task(), tuning.LAYOUTS)
    assert set(seconds) == set(tuning.LAYOUTS)
    assert min(seconds.values()) > 0


def test_layouts_agree_up_to_rounding():
    recipe, one = parse("fedavg"), task()
    other = one.in_layout("channels_last")
    assert other.net(recipe).body.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    a, b = (rounds.run(recipe, t, LocalEngine(), 1) for t in (one, other))
    for name, v in a.w.items():
        assert torch.allclose(v, b.w[name], atol=1e-3), name


def test_the_choice_is_written_down_and_a_resumed_run_keeps_it(timed, tmp_path):
    timed(1.0, 0.5)
    run = headway.run("fedavg", out=tmp_path / "r", options=Options(tune=True), **CONV)
    assert run.config["options"]["layout"] == "channels_last"
    whole = (run.path / "model.safetensors").read_bytes()
    (run.path / "summary.json").unlink()
    (run.path / "model.safetensors").unlink()
    for path in (run.path / "checkpoint").iterdir():
        path.unlink()  # from the first round, to be sure
    headway.resume(run.path)
    assert (run.path / "model.safetensors").read_bytes() == whole
    plain = headway.run("fedavg", out=tmp_path / "p", **CONV)
    assert Run(plain.path).config["options"]["layout"] == "channels_first"
    assert (plain.path / "model.safetensors").read_bytes() != whole


@pytest.mark.parametrize("recipe", [parse("fedexp"), parse("fedprox")])  # both sum over whole models
def test_workers_agree_with_one_process_in_either_layout(recipe):
    own = {"batch_size": 8, "momentum": 0.9, "lr": 0.05, "persist_momentum": True}
    last = build(settings(CONV | own)).in_layout("channels_last")
    with closing(PoolEngine(recipe, last, 2)) as pool:
        a, b = rounds.run(recipe, last, LocalEngine(), 3).w, rounds.run(recipe, last, pool, 3).w
    for name, v in a.items():
        assert torch.equal(v, b[name]), name


@pytest.mark.parametrize(
    ("compiled", "chosen"), [(0.3, "channels_last+compile"), (0.47, "channels_last"), (None, "channels_last")]
)
def test_code_is_compiled_only_where_that_pays(timed, tmp_path, compiled, chosen):
    timed(1.0, 0.5, compiled)  # 0.47 of 0.5: not worth the wait; None: it cannot be compiled
    told = []
    assert tuning.layout_for(task(), tmp_path, told.append) == chosen
    assert tuning.layout_for(task(), tmp_path, told.append) == chosen
    assert told == ["note: trying torch.compile on this model; this takes a minute or two, once on this machine"]


@pytest.mark.skipif(not tuning.compiler(), reason="the kernel is built by a C++ compiler")
@pytest.mark.parametrize(
    ("united", "compiled", "chosen"),
    [(0.3, 0.29, "channels_last+native"), (0.3, 0.1, "channels_last+compile"), (0.49, 0.49, "channels_last")],
)
def test_pools_are_united_with_their_convolutions_where_that_pays(timed, tmp_path, united, compiled, chosen):
    timed(1.0, 0.5, compiled, united)
    pools = build(settings(CONV | {"model": "mcmahan_cnn_padded"}))
    assert tuning.candidates(pools) == ("channels_first", "channels_last", "channels_last+native")
    assert tuning.layout_for(pools, tmp_path) == chosen
    assert tuning.layout_for(pools, tmp_path, use_native=False).endswith("+native") is False


def test_a_table_that_native_code_does_not_compute_has_one_way():
    assert tuning.candidates(build(settings(CONV | {"model": "mlp_small"}))) == ("channels_first",)


REFUSES = {"model": __file__ + ":Viewing"}  # a network that cannot run channels last


class Viewing(torch.nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv, self.fc = torch.nn.Conv2d(1, 16, 3), torch.nn.Linear(16 * 36, classes)

    def forward(self, x):
        return self.fc(self.conv(x).relu().view(-1, 16 * 36))


@pytest.mark.skipif(not tuning.compiler(), reason="the kernel is built by a C++ compiler")
def test_a_body_that_refuses_a_layout_is_not_timed_in_it():
    ways = tuning.candidates(build(settings(CONV | REFUSES)))
    assert "channels_last" not in ways
    assert set(tuning.measured(build(settings(CONV | REFUSES)), ways)) == set(ways)


def test_ways_are_timed_in_a_process_of_their_own(monkeypatch, tmp_path):
    """The memory it takes must not stay with the run."""
    here = []
    monkeypatch.setattr(tuning, "compiler", lambda: None)

    def measured(task, ways):
        here.append(ways)  # in this process, were it called here
        return dict.fromkeys(ways, 1.0)

    monkeypatch.setattr(tuning, "measured", measured)
    assert tuning.layout_for(task(), tmp_path / "a") == "channels_first"
    assert here == []
    monkeypatch.setattr(tuning, "measured_apart", lambda task, ways: {})  # it may fail: then here after all
    assert tuning.layout_for(task(), tmp_path / "b") == "channels_first"
    assert here == [tuning.candidates(task())]


def test_without_a_compiler_nothing_is_compiled(timed, tmp_path, monkeypatch):
    timed(1.0, 0.5, compiled=0.1)
    monkeypatch.setattr(tuning, "compiler", lambda: None)
    assert tuning.layout_for(task(), tmp_path) == "channels_last"


def test_a_body_that_cannot_be_compiled_or_takes_too_long_is_left_as_it_is(monkeypatch):
    def cannot(task, ways):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(tuning, "measured", cannot)
    assert tuning.measured_apart(task(), ("channels_first",)) == {}
    monkeypatch.setattr(tuning, "measured", lambda task, ways: time.sleep(3600))  # longer than a test may take
    monkeypatch.setattr(tuning, "PATIENCE", 0.1)
    assert tuning.measured_apart(task(), ("channels_first",)) == {}
    assert multiprocessing.active_children() == []  # nobody goes on compiling


@pytest.mark.skipif(not tuning.compiler(), reason="torch.compile needs a C++ compiler")
@pytest.mark.slow  # torch.compile takes most of a minute
def test_compiled_training_agrees_up_to_rounding_for_any_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    recipe, plain = parse("scaffold+fn"), build(settings(CONV | {"batch_size": 8}))
    compiled = plain.in_layout("channels_first+compile")
    with closing(PoolEngine(recipe, compiled, 1)) as one, closing(PoolEngine(recipe, compiled, 2)) as two:
        a, b = rounds.run(recipe, compiled, one, 1).w, rounds.run(recipe, compiled, two, 1).w
    c = rounds.run(recipe, plain, LocalEngine(), 1).w
    assert list((tmp_path / "compiled").rglob("*.so"))  # there is compiled code
    for name, v in a.items():
        assert torch.equal(v, b[name]), name
        assert torch.allclose(v, c[name], atol=1e-3), name
    assert any(not torch.equal(v, c[name]) for name, v in a.items())  # and it was used


def test_a_cache_that_cannot_be_written_is_done_without(timed, tmp_path):
    timed(1.0, 0.5)
    (tmp_path / "file").write_text("")
    assert tuning.layout_for(task(), tmp_path / "file") == "channels_last"
