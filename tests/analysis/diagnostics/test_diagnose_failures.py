"""`headway diagnose` when something fails: findings whole or not at all, and no finding lost to another."""

from __future__ import annotations

import csv
import math
import shutil
from dataclasses import replace

import pytest
import torch
from calling import headway
from diagnosing import plain, quick

from headway.analysis.diagnostics import diagnose
from headway.analysis.diagnostics.catalogue import diagnostic
from headway.analysis.diagnostics.factors import four_factors
from headway.analysis.diagnostics.finding import NotApplicable
from headway.analysis.diagnostics.labels import labels
from headway.analysis.diagnostics.subject import Subject
from headway.runs import posthoc as afterwards


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried"),
            "not enough",
        ),
        (afterwards.CheckpointError("model.safetensors is missing or damaged; run it again"), "damaged"),
    ],
)
def test_one_that_fails_does_not_lose_the_others(runs, tmp_path, monkeypatch, error, told) -> None:
    def fake(name):
        def look(subject):
            if name == "norms":
                raise error
            return plain(name)

        return look

    monkeypatch.setattr(diagnose, "diagnostic", fake)
    plain("norms").save(tmp_path)  # of an earlier look: it must not pass for this one's
    end = headway("diagnose", runs("fedtc"), "--only=labels,norms,collapse", "--json", f"--out={tmp_path}")
    assert end.code == 0
    assert list(end.json[0]["findings"]) == ["labels", "collapse"]
    assert told in end.json[0]["failed"]["norms"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "collapse.json",
        "collapse.t.csv",
        "labels.json",
        "labels.t.csv",
    ]


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), torch.linalg.LinAlgError("singular")])
def test_a_bug_is_not_hidden_and_loses_nothing(runs, tmp_path, monkeypatch, error) -> None:
    def broken(subject):
        raise error

    monkeypatch.setattr(diagnose, "diagnostic", lambda name: broken if name == "norms" else lambda s: plain(name))
    plain("norms").save(tmp_path)
    end = headway("diagnose", runs("fedtc"), "--only=labels,norms,collapse", f"--out={tmp_path}", "--json")
    assert end.code == 1
    told = f"{type(error).__name__}: {error} (test_diagnose_failures.py:"
    assert end.json[0]["failed"]["norms"].startswith(told)
    assert list(end.json[0]["findings"]) == ["labels", "collapse"]
    assert end.err.startswith(f"headway: {runs('fedtc')}: norms failed: {told}")
    assert end.err.count("\n") == 1
    assert not (tmp_path / "norms.json").exists()


def test_a_failed_run_does_not_stop_the_others(copied, diverged, tmp_path) -> None:
    first, last = copied("fedtc"), copied("local")
    end = headway("diagnose", first, diverged, last, "--only=labels,norms", "--json")
    assert end.code == 0
    assert [list(f["findings"]) for f in end.json] == [["labels", "norms"], ["labels"], ["labels", "norms"]]
    assert "failed" in end.json[1]["skipped"]["norms"]
    end = headway("diagnose", first, diverged, last, "--only=collapse", f"--out={tmp_path / 'x'}", "-q")
    assert end.code == 0
    assert end.err.startswith(f"headway: {diverged} failed: ")
    assert end.err.count("\n") == 1
    assert str(last) in end.out


def test_a_failed_run_has_labels_and_curves(diverged, tmp_path) -> None:
    end = headway("diagnose", diverged, f"--out={tmp_path}", "-q")
    assert end.code == 0
    assert sorted(p.stem for p in tmp_path.glob("*.json")) == ["labels", "traces"]
    assert f"others skipped: {diverged} failed: " in " ".join(end.out.split())


def test_when_no_run_can_be_looked_at(diverged, tmp_path) -> None:
    end = headway("diagnose", diverged, "--only=norms", f"--out={tmp_path / 'x'}")
    assert end.code == 2
    assert end.out == ""
    assert end.err.startswith(f"headway: {diverged} failed: ")
    assert not (tmp_path / "x").exists()


def test_a_run_without_its_checkpoint_has_labels_and_curves(copied) -> None:
    run = copied("fedtc")
    shutil.rmtree(run / "checkpoint")
    end = headway("diagnose", run, "--only=labels,traces,norms", "--json")
    assert end.code == 0
    assert list(end.json[0]["findings"]) == ["labels", "traces"]
    assert "has lost its last checkpoint" in end.json[0]["skipped"]["norms"]


def test_an_interruption_leaves_whole_findings_only(runs, tmp_path, monkeypatch) -> None:
    from headway.analysis.diagnostics import finding

    write = finding.write_atomic

    def stopped(path, data):
        if path.name == "norms.json":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(diagnose, "diagnostic", lambda name: lambda subject: plain(name))
    monkeypatch.setattr(finding, "write_atomic", stopped)
    end = headway("diagnose", runs("fedtc"), "--only=labels,norms", f"--out={tmp_path}", "-q")
    assert end.code == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.json", "labels.t.csv"]


def test_a_finding_saved_again_leaves_no_old_table(tmp_path) -> None:
    replace(plain("norms"), tables={"old": [{"a": 1}], "t": [{"a": 2}]}).save(tmp_path)
    plain("norms").save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["norms.json", "norms.t.csv"]


def test_hostile_class_names(runs, tmp_path) -> None:
    subject = Subject.of(runs("fedtc"))
    names = ("=cmd()", "$a_{b", "_hidden", "two\nlines", "x" * 200, "<b>", "", "\x07", "名", "%s")
    object.__setattr__(
        subject.saved, "task", replace(subject.task, dataset=replace(subject.task.dataset, class_names=names))
    )
    for finding in (labels(subject), four_factors(subject)):
        finding.save(tmp_path)
    with open(tmp_path / "labels.counts.csv", newline="") as f:
        assert {row["class"] for row in csv.DictReader(f)} <= {"'=cmd()", *names}


def test_a_class_missing_from_the_test_set(runs) -> None:
    subject = Subject.of(runs("fedtc"))
    x, y = subject.test
    subject.__dict__["test"] = (x[y != 2], y[y != 2])
    for name in ("four_factors", "norms", "collapse"):
        record = diagnostic(name)(subject).record()
        numbers = [v for v in record["summary"].values() if v is not None]
        assert all(math.isfinite(v) for v in numbers)
    assert diagnostic("four_factors")(subject).tables["per_class"][2]["intra_raw"] is None


def test_features_that_are_no_numbers_are_not_looked_at(runs) -> None:
    subject = Subject.of(runs("fedtc"))
    subject.__dict__["features"] = torch.full((2, 3), float("nan"))
    with pytest.raises(NotApplicable, match="not finite"):
        four_factors(subject)


def test_a_dead_body_is_told_and_the_rest_is_looked_at(runs, tmp_path, monkeypatch) -> None:
    quick(monkeypatch)
    subject = Subject.of(runs("fedtc"))
    with torch.no_grad():
        for v in subject.saved.server.w.values():
            v.zero_()
    results = diagnose.diagnose(subject, ["four_factors", "norms", "consistency"], tmp_path, lambda done, name: None)
    assert "dead" in results.skipped["four_factors"]
    assert [f.name for f in results.findings] == ["norms", "consistency"]
