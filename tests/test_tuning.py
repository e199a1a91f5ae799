"""The layout of images: chosen by time, remembered, written down, kept by a resumed run."""

from __future__ import annotations

import json

import pytest
import torch
import toy

import headway
from headway import rounds, tuning
from headway.engine import LocalEngine
from headway.experiment import Options
from headway.methods import recipe as parse
from headway.rundir import Run
from headway.settings import settings
from headway.task import build

CONV = {"data": "digits", "model": "resnet8", "clients": 3, "train_size": 90, "test_size": 50, "rounds": 2}


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Seconds by layout, instead of a clock; counts how often they were asked for."""
    asked = []

    def set_to(first, last):
        def measured(task):
            asked.append(task)
            return {"channels_first": first, "channels_last": last}

        monkeypatch.setattr(tuning, "measured", measured)
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
    assert json.loads(record.read_text())["seconds"] == {"channels_first": 1.0, "channels_last": 0.5}


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
    seconds = tuning.measured(task())
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
