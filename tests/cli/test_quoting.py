"""Folders whose names a shell would read otherwise: every command takes them, and commands to copy are quoted."""

from __future__ import annotations

import html
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from calling import headway

from headway.analysis.export.export import export
from headway.base.errors import HeadwayError
from headway.base.wording import for_commands
from headway.runs import search as found_runs
from headway.runs.directory import disk
from headway.runs.run import Run
from headway.runs.runner import Stopped, execute
from headway.training.settings import settings

SMALL = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"}
NAMES = ["dir(0.1)", "fedavg+gmv(warmup=10)", "with space & [bracket]", "it's"]
FOLDER = "runs/dir(0.1)/fedavg+gmv(warmup=10)"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    torch.set_num_threads(1)
    return execute("fedavg", settings(SMALL), tmp_path_factory.mktemp("quoting") / "run").path


@pytest.fixture(autouse=True)
def run(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished, FOLDER))


def commands(text: str) -> list[list[str]]:
    """The words that a shell makes of every command in a sentence; one that it would trip over is no command."""
    found = re.findall(r"`(headway [^`]*)`", text)
    assert found == [shlex.join(shlex.split(command)) for command in found]
    return [shlex.split(command) for command in found]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_takes_such_a_folder(finished, name) -> None:
    run = Path(shutil.copytree(finished, f"all/{name}"))
    for words in (
        ("calibrate", run, "--with=ccvr(epochs=2)", "--quiet"),
        ("personalise", run, "--with=ft(epochs=1)", "--quiet"),
        ("diagnose", run, "--only=labels,norms", "--quiet"),
        ("export", run, "--to=safetensors", "--model=calibrated"),
        ("report", run),
        ("resume", run, "--quiet"),
    ):
        end = headway(*words)
        assert (end.code, end.err) == (0, ""), end
        assert words[0] in ("calibrate", "personalise", "report") or str(run) in end.out.replace("\n", "")
    assert headway("runs", "all").code == 0
    assert name in headway("runs", "all").out
    assert [r.path for r in found_runs.runs("all")] == [run]
    (run / "summary.json").unlink()
    assert headway("resume", run, "--quiet").code == 0
    assert Run(run).done


@pytest.mark.parametrize("name", NAMES)
def test_a_run_and_a_comparison_are_written_there(name) -> None:
    few = ("--clients=3", "--rounds=1", "--train-size=100", "--test-size=50", "--model=mlp_small", "--quiet")
    assert headway("run", "fedavg", *few, "--out", f"one/{name}").code == 0
    assert headway("compare", "fedavg", "fedprox(mu=0.1)", *few, "--out", f"two/{name}").code == 0
    assert (Path("two") / name / "fedprox(mu=0.1)" / "seed-0" / "summary.json").exists()


def test_hints_to_resume_can_be_copied(run) -> None:
    (run / "summary.json").unlink()
    for words in (
        ("calibrate", run, "--with=ccvr"),
        ("personalise", run, "--with=ft"),
        ("diagnose", run),
        ("export", run, "--to=onnx"),
    ):
        assert commands(headway(*words).err) == [["headway", "resume", FOLDER]], words
    (run / "metrics.jsonl").write_text("")
    assert commands(headway("report", run).err) == [["headway", "resume", FOLDER]]
    with for_commands():
        assert commands(str(Stopped(2, run, 1))) == [["headway", "resume", FOLDER]]
        with pytest.raises(HeadwayError) as caught, disk(run / "metrics.jsonl"):
            raise OSError(28, "No space left on device")
    assert commands(str(caught.value)) == [["headway", "resume", FOLDER]]
    assert str(Stopped(2, run, 1)) == f"stopped after round 1; headway.resume({FOLDER!r}) continues it"


def test_hints_of_export_can_be_copied(run) -> None:
    for model, command in (("calibrated", "calibrate"), ("client:0@ft", "personalise")):
        with pytest.raises(HeadwayError) as caught:
            export(run, "safetensors", model)
        assert [words[:3] for words in commands(str(caught.value))] == [["headway", command, FOLDER]]


def test_the_reports_commands_can_be_copied(run) -> None:
    assert headway("report", run).code == 0
    page = (run / "report.html").read_text()
    told = re.findall(r"headway diagnose [^<]*", html.unescape(page))
    assert told
    assert {line.strip() for line in told} == {shlex.join(["headway", "diagnose", FOLDER])}
