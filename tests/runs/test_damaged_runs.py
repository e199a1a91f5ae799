"""Run directories that lost something, or that something else was about to be written into."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from calling import SMALL, headway
from run_files import DIGITS

import headway as package
from headway.base.errors import CheckpointError
from headway.runs.run import Run
from headway.runs.runner import Progress


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of three rounds."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert headway("run", "fedavg", *SMALL, "--rounds=3", f"--out={out}", "--quiet").code == 0
    return out


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def lose_a_line(rows):
    return rows[:1] + rows[2:]


@pytest.mark.parametrize("damage", [lambda rows: [], lambda rows: rows[:-1], lose_a_line])
def test_a_finished_run_that_lost_rounds_is_damaged_everywhere(run, damage):
    file = run / "metrics.jsonl"
    rows = file.read_text().splitlines(keepends=True)
    assert len(rows) == 3
    file.write_text("".join(damage(rows)))
    left = len(damage(rows))
    with pytest.raises(
        CheckpointError, match=rf"metrics.jsonl is damaged: it has {left} lines and the run had 3 rounds"
    ):
        _ = Run(run).metrics
    for command in (["report", str(run)], ["resume", str(run)], ["runs", str(run), "--metrics"]):
        end = headway(*command)
        assert (end.code, "Traceback" in end.err) == (2, False), command
        assert "damaged" in end.err + end.out
    listed = headway("runs", str(run))
    assert "damaged" in listed.out


def test_a_damaged_model_is_made_again_as_the_message_says(run):
    model = run / "model.safetensors"
    before = model.read_bytes()
    model.write_bytes(before[:100])
    end = headway("export", str(run), "--to=torch")
    assert end.code == 2
    assert f"`headway resume {run}` makes it again" in end.err
    assert headway("resume", str(run), "--quiet").code == 0
    assert model.read_bytes() == before


@pytest.mark.parametrize("command", [["compare", "fedavg", "scaffold"], ["run", "fedavg", "--seeds=0,1"]])
def test_a_comparison_is_not_written_into_a_run(run, command):
    before = sorted(p.name for p in run.iterdir())
    end = headway(*command, *SMALL, f"--out={run}")
    assert (end.code, end.err.count("\n")) == (2, 1)
    assert "it holds a run, and a comparison needs a folder of its own; choose another --out" in end.err
    assert sorted(p.name for p in run.iterdir()) == before


# ---- partition.json and sampling.json follow from config and seed
DAMAGE = {"missing": None, "empty": 0, "cut short": 20, "without its last byte": -1}


def harm(file, cut):
    if cut is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:cut])


@pytest.mark.parametrize("cut", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["partition.json", "sampling.json"])
@pytest.mark.parametrize("state", ["finished", "stopped"])
def test_resume_writes_what_follows_from_config_and_seed_again(run, whole, name, cut, state):
    harm(run / name, cut)
    if state == "stopped":
        (run / "summary.json").unlink()
    end = headway("resume", run)
    assert end.code == 0
    assert f"{name} was missing or damaged and was written again" in end.err
    for file in ("partition.json", "sampling.json", "metrics.jsonl", "model.safetensors"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file
    assert (run / "summary.json").exists()


def test_the_same_command_again_writes_them_too(run, whole):
    (run / "summary.json").unlink()
    harm(run / "partition.json", None)
    harm(run / "sampling.json", 5)
    assert headway("run", "fedavg", *SMALL, "--rounds=3", f"--out={run}", "--quiet").code == 0
    for file in ("partition.json", "sampling.json"):
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file


def test_a_partition_of_pooled_data_is_written_again(tmp_path):
    assert headway("run", "centralized", *SMALL, f"--out={tmp_path / 'a'}").code == 0
    before = {name: (tmp_path / "a" / name).read_bytes() for name in ("partition.json", "sampling.json")}
    for name in before:
        (tmp_path / "a" / name).unlink()
    assert headway("resume", tmp_path / "a").code == 0
    assert {name: (tmp_path / "a" / name).read_bytes() for name in before} == before


def test_whole_json_that_differs_is_left_as_it_stands(run):
    (run / "partition.json").write_text('{"mine": 1}\n')
    assert headway("resume", run).code == 0
    assert (run / "partition.json").read_text() == '{"mine": 1}\n'


def test_a_finished_run_whose_data_are_gone_stays_finished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("mine.npz", x=np.random.RandomState(0).rand(60, 4), y=np.arange(60) % 3)
    assert headway("run", "fedavg", "--data=mine.npz", "--clients=2", "--rounds=1", "--quiet", "--out=a").code == 0
    Path("mine.npz").unlink()
    harm(Path("a/model.safetensors"), 100)
    assert headway("resume", "a").code == 2
    assert Path("a/summary.json").exists()


# ---- a full disk
@pytest.fixture
def full(monkeypatch):
    """A disk on which files can be made and nothing can be written."""

    def write_bytes(self, data):
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


@pytest.mark.parametrize("words", [["partition"], ["run", "fedavg", "--rounds=1"]])
def test_a_full_disk_leaves_nothing_behind(tmp_path, full, words):
    end = headway(*words, "--data=digits", "--clients=3", f"--out={tmp_path / 'new' / 'p'}")
    assert (end.code, end.err.count("\n")) == (74, 1)
    assert "No space left on device" in end.err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_takes_no_folder_that_was_there(tmp_path, full):
    (tmp_path / "there").mkdir()
    assert headway("partition", "--clients=3", f"--out={tmp_path / 'there'}").code == 74
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_finished_run_with_a_damaged_model_is_made_whole_again(tmp_path):
    run = package.run("scaffold", out=tmp_path / "r", **DIGITS)
    whole = (run.path / "model.safetensors").read_bytes()
    (run.path / "model.safetensors").write_bytes(whole[:50])
    package.resume(run.path)
    assert (run.path / "model.safetensors").read_bytes() == whole


def test_a_run_that_lost_all_checkpoints_says_so(tmp_path):
    run = package.run("fedavg", out=tmp_path / "r", **DIGITS)
    (run.path / "summary.json").unlink()
    for path in (run.path / "checkpoint").glob("*.json"):
        path.write_text("[]")

    class Hearing(Progress):
        said: list[str] = []  # noqa: RUF012

        def say(self, text):
            self.said.append(text)

    package.resume(run.path, package.Options(progress=Hearing()))
    assert any("starts again at round 1" in text for text in Hearing.said)
