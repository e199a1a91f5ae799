"""Advice in errors: what the user of that very command can do, and before the long work instead of after it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import click
import pytest
import torch
from calling import headway

from headway.analysis.diagnostics import subject
from headway.analysis.export import export as exporting
from headway.cli.app import app
from headway.cli.help import options_of
from headway.runs import lock
from headway.runs import posthoc as afterwards
from headway.runs.runner import execute
from headway.training.settings import settings

SMALL = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"}
CALIBRATE, PERSONALISE = ("calibrate", "run", "--with=ccvr"), ("personalise", "run", "--with=ft")
EXPORT, DIAGNOSE = ("export", "run", "--to=safetensors"), ("diagnose", "run", "--only=labels")
RESUME, REPORT = ("resume", "run"), ("report", "run")
COPY = "copy the run to a folder that can be written"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    return execute("fedavg", settings(SMALL), tmp_path_factory.mktemp("advice") / "run").path


@pytest.fixture(autouse=True)
def run(finished, tmp_path, monkeypatch):
    """A copy to spoil, called `run` from where the user stands."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, "run"))


@pytest.fixture
def read_only(monkeypatch):
    """Makes a folder read-only for whoever asks through Path, root included."""

    def guard(folder: str) -> None:
        top = Path(folder).resolve()
        for name in ("mkdir", "write_bytes", "write_text"):
            real = getattr(Path, name)

            def guarded(self, *args, real=real, **more):
                if self.resolve().is_relative_to(top) and not (real.__name__ == "mkdir" and self.exists()):
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                return real(self, *args, **more)

            monkeypatch.setattr(Path, name, guarded)

    return guard


def refusal(*words: str, code: int = 2) -> str:
    """The one sentence on stderr; every option it names is one of that command."""
    end = headway(*words)
    assert (end.code, end.out, end.err.count("\n")) == (code, "", 1), end
    of_others = re.sub(r"`headway .*?`", "", end.err)  # a command to copy has options of its own
    known = options_of(app.get_command(click.Context(app), words[0]))
    assert set(re.findall(r"--[a-z][a-z-]*", of_others)) <= set(known), end.err
    return end.err


# ---- folders that cannot be written
@pytest.mark.parametrize(
    ("words", "folder", "fix"),
    [
        (CALIBRATE, "run/calibrated", COPY),
        (PERSONALISE, "run/personalised", COPY),
        (EXPORT, "run/exported", "name another place with --out"),
        (DIAGNOSE, "run/diagnostics", "name another folder with --out"),
        (REPORT, "run", "name another place with --out"),
    ],
)
def test_a_read_only_run_is_refused_before_the_work(read_only, monkeypatch, words, folder, fix) -> None:
    for place, work in (
        (subject, "load"), (afterwards, "load"), (afterwards, "unchanged_task"), (exporting, "unchanged_task"),
        (exporting, "written"),
    ):  # fmt: skip
        monkeypatch.setattr(place, work, None)  # it would fail
    read_only("run")
    said = refusal(*words)
    assert f"run=run: {folder} cannot be written (Read-only file system); {fix}" in said


@pytest.mark.parametrize("words", [CALIBRATE, PERSONALISE, EXPORT, DIAGNOSE])
def test_a_file_where_a_folder_should_be_is_to_be_moved_away(words) -> None:
    folder = {"calibrate": "calibrated", "personalise": "personalised", "export": "exported"}.get(
        words[0], "diagnostics"
    )
    Path("run", folder).write_text("mine")
    assert f"run=run: run/{folder} is a file; move it away" in refusal(*words)
    assert Path("run", folder).read_text() == "mine"


def test_an_export_to_a_read_only_place_is_refused_before_the_work(read_only, monkeypatch) -> None:
    monkeypatch.setattr(exporting, "unchanged_task", None)
    Path("there").mkdir()
    read_only("there")
    said = refusal(*EXPORT, "--out=there/m.safetensors")
    assert "out=there/m.safetensors: there cannot be written (Read-only file system); choose another --out" in said
    said = refusal(*EXPORT, "--out=there/new/m.safetensors")
    assert "out=there/new/m.safetensors: there/new cannot be written" in said


@pytest.mark.parametrize("words", [("calibrate", "run", "--with=ft"), ("personalise", "run", "--with=ccvr")])
def test_a_refused_request_leaves_no_folder_behind(words) -> None:
    before = sorted(os.listdir("run"))
    refusal(*words)
    assert sorted(os.listdir("run")) == before


def test_a_csv_folder_that_cannot_be_made_names_its_own_option() -> None:
    Path("file").write_text("mine")
    said = refusal("runs", ".", "--metrics", "--csv=file/")
    assert "csv=file/: file is a file; move it away" in said


# ---- runs that are spoilt
@pytest.mark.parametrize("words", [CALIBRATE, PERSONALISE, EXPORT, DIAGNOSE, RESUME])
@pytest.mark.parametrize("text", ["", "{}"])
def test_a_spoilt_config_is_not_mended_by_options_that_are_not_there(words, text) -> None:
    Path("run/config.json").write_text(text)
    said = refusal(*words)
    assert "config.json is " in said
    assert "make the run again in another folder" in said


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "partition.json"])
def test_a_spoilt_file_of_a_reported_run_is_not_mended_by_the_reports_own_out(name) -> None:
    Path("run", name).write_text("{}\n" if name == "metrics.jsonl" else "{}")
    said = refusal(*REPORT)
    assert "make the run again in another folder" in said


@pytest.mark.parametrize("words", [CALIBRATE, PERSONALISE])
def test_a_lost_checkpoint_says_what_can_be_done(words) -> None:
    shutil.rmtree("run/checkpoint")
    assert "has lost its last checkpoint; make the run again in another folder" in refusal(*words)


def test_a_run_in_use_is_waited_for() -> None:
    Path("run/summary.json").unlink()
    with lock.locked(Path("run")):
        assert re.search(r"run=run: process \d+ on \S+ is running here; wait for it$", refusal(*RESUME).strip())


def test_metrics_that_lost_lines_name_the_command_that_can_start_anew() -> None:
    Path("run/summary.json").unlink()
    Path("run/metrics.jsonl").write_text("")
    assert "put it back, or start again with `headway run --overwrite`" in refusal(*RESUME)


def test_a_run_of_other_data_is_made_again_elsewhere() -> None:
    Path("run/summary.json").unlink()
    config = Path("run/config.json")
    config.write_text(config.read_text().replace('"lr": 0.', '"lr": 1.', 1))
    assert "put lr=0.05 back into run/config.json, or make the run again in another folder" in refusal(*RESUME)


def test_a_full_disk_names_no_option_of_another_command(monkeypatch) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("headway.base.serialise.os.replace", full)
    assert "free space" in refusal(*CALIBRATE, "--quiet", code=74)
