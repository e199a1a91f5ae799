"""Confusion: a matrix done by hand, and whose predictions it holds under each kind of recipe."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosed import blobs, check_whole, finished, task_on

from headway.analysis.diagnostics.confusion import confusion_matrix, per_class, shares
from headway.runs import posthoc as afterwards


def test_by_hand() -> None:
    """Class 0 twice right and once taken for 2; class 1 never asked; class 2 once taken for 0."""
    counts = confusion_matrix(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 2, 0, 0]), 3)
    assert counts.tolist() == [[2, 0, 1], [0, 0, 0], [1, 0, 0]]
    rows = shares(counts)
    assert rows[0].tolist() == pytest.approx([2 / 3, 0, 1 / 3])
    assert all(math.isnan(v) for v in rows[1])


def test_the_diagonal_is_the_run_s_own_per_class_accuracy(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    found = per_class(subject)
    check_whole(found, tmp_path)
    assert [r["accuracy (global model)"] for r in found.tables["classes"]] == subject.saved.run.summary["per_class"]
    assert sum(r["samples"] for r in found.tables["confusion"]) == 90
    assert sum(r["training_samples"] for r in found.tables["classes"]) == int(subject.counts.sum())


def test_before_and_after_the_run_s_own_calibration(tmp_path) -> None:
    subject = finished("fedavg+ccvr(epochs=5)", tmp_path / "run")
    found = per_class(subject)
    ran = subject.saved.run.summary
    assert [r["accuracy (before calibration)"] for r in found.tables["classes"]] == ran["calibrated"][
        "per_class_before"
    ]
    assert [r["accuracy (after ccvr)"] for r in found.tables["classes"]] == ran["per_class"]
    assert "the run's own" in found.about


def test_the_newest_calibration_made_of_the_run(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    afterwards.calibrate(tmp_path / "run", "oracle(epochs=3)")
    result = afterwards.calibrate(tmp_path / "run", "ccvr(epochs=3)")
    found = per_class(subject)
    assert [r["accuracy (after ccvr)"] for r in found.tables["classes"]] == result["per_class_after"]
    assert found.summary["accuracy (before calibration)"] == result["before"]
    check_whole(found, tmp_path)


@pytest.mark.parametrize("recipe", ["local", "lgfedavg", "fedper"])
def test_without_a_global_classifier_clients_speak_for_themselves(recipe: str, tmp_path) -> None:
    subject = finished(recipe, tmp_path / "run", local_test="0.25")
    found = per_class(subject)
    pooled = subject.saved.run.summary["personal"]["pooled"]
    assert found.summary["accuracy (clients' own models)"] == pytest.approx(pooled)
    check_whole(found, tmp_path)


@pytest.mark.parametrize("classes", [2, 120])
def test_few_and_many_classes_with_hostile_names(classes: int, tmp_path) -> None:
    odd = ("_$x^2$", "=1+1\n<script>", "a" * 300, "\x00\t", "日本語")
    names = tuple((odd[c] if c < len(odd) else f"class {c}") for c in range(classes))
    found = per_class(finished("fedavg", tmp_path / "run", task_on(blobs(classes, names))))
    check_whole(found, tmp_path)
    assert found.tables["classes"][-1]["accuracy (global model)"] is None  # the test set lacks the last class
