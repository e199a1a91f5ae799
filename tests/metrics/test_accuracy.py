"""Accuracy: which models are scored on which samples, and when a run counts as failed."""

from __future__ import annotations

import json

import pytest
from run_files import DIGITS

import headway
from headway.metrics.accuracy import failure


def test_under_batch_statistics_each_client_is_scored_on_its_own_tests_alone(tmp_path):
    run = headway.run("fedavg", out=tmp_path / "r", model="resnet8", bn="batch", **DIGITS)
    last = json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["personal_acc"] == pytest.approx(run.summary["personal"]["stages"]["received"])


def test_a_run_without_a_global_model_fails_by_its_personal_accuracy():
    rows = [{"round": t, "diverged": False, "global_acc": None, "personal_acc": 0.1} for t in range(1, 51)]
    assert "chance" in failure(rows, 10, "personal_acc")
    seldom = [{"round": t, "diverged": False, "global_acc": 0.1} for t in (25, 50)]  # evaluated twice in 50 rounds
    assert "chance" in failure(seldom, 10)
    assert failure([{"round": t, "diverged": False, "global_acc": 0.1} for t in (1, 2)], 10) is None  # just begun
