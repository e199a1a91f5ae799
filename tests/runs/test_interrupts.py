"""Asking twice, or too late: what a run says and keeps."""

from __future__ import annotations

import json
import os
import signal

import pytest
from calling import SMALL, headway

from headway.runs import runner as experiment
from headway.runs.runner import Experiment, Stopped, execute
from headway.training.settings import settings

TASK = {"clients": 3, "rounds": 4, "train_size": 150, "test_size": 60, "model": "mlp_small"}


def asking(monkeypatch, moments):
    """Send the run Ctrl-C when it is about to train these clients, counted from the first of the run."""
    tick, count = Experiment._tick, iter(range(1000))

    def noted(self, done, total):
        if next(count) in moments:
            os.kill(os.getpid(), signal.SIGINT)
        tick(self, done, total)

    monkeypatch.setattr(Experiment, "_tick", noted)


def test_the_second_asking_during_a_checkpoint_is_not_heard(tmp_path, monkeypatch):
    real = Experiment._checkpoint

    def slow(self, server):
        os.kill(os.getpid(), signal.SIGINT)
        real(self, server)

    asking(monkeypatch, {7})
    monkeypatch.setattr(Experiment, "_checkpoint", slow)
    before = signal.getsignal(signal.SIGINT)  # a shell starts what runs in its background deaf to Ctrl-C
    with pytest.raises(Stopped, match=r"^stopped after round"):
        execute("fedavg", settings(TASK), tmp_path / "a", experiment.Options(checkpoint_seconds=1000))
    assert list((tmp_path / "a" / "checkpoint").glob("round-*.json"))
    assert signal.getsignal(signal.SIGINT) is before


def test_asked_twice_it_stops_at_once_and_says_how_to_go_on(tmp_path, monkeypatch):
    real = Experiment._tick

    def twice(self, done, total):
        if len(self.rows) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        real(self, done, total)

    monkeypatch.setattr(Experiment, "_tick", twice)
    with pytest.raises(Stopped, match=r"^stopped after round 0; headway\.resume\('.*'\) continues it"):
        execute("fedavg", settings(TASK), tmp_path / "a", experiment.Options(checkpoint_seconds=1000))


def test_a_resumed_run_keeps_its_name(tmp_path, monkeypatch):
    whole = headway("run", "fedetf", *SMALL[:-1], f"--out={tmp_path / 'a'}")
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "a" / name).unlink()
    again = headway("resume", tmp_path / "a")
    assert again.code == 0
    assert again.out.split(":")[0] == whole.out.split(":")[0] == "fedetf"
    assert json.loads((tmp_path / "a" / "config.json").read_text())["recipe"] == "fedavg+etfproj+balanced"
