"""`headway diagnose` on finished runs: what it saves, and requests it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from calling import headway
from diagnosing import OURS, TASK, quick

from headway.analysis.diagnostics.catalogue import DIAGNOSTICS, chosen
from headway.analysis.diagnostics.factors import four_factors
from headway.analysis.diagnostics.labels import labels
from headway.analysis.diagnostics.norms import classifier_norms, norms
from headway.analysis.diagnostics.separability import separability
from headway.analysis.diagnostics.subject import Subject
from headway.base.errors import ConfigError
from headway.data.partitions.partition import describe
from headway.runs import posthoc as afterwards
from headway.runs.run import Run
from headway.runs.runner import Options, execute
from headway.training.settings import settings

ONLY = "--only=" + ",".join(OURS)


PNG = b"\x89PNG\r\n\x1a\n"


# ---- the command on real runs
def test_all_findings_of_a_run_are_saved(copied) -> None:
    run = copied("fedetf")
    end = headway("diagnose", run, ONLY, "--quiet")
    assert (end.code, end.err) == (0, "")
    folder = run / "diagnostics"
    for name in (n for n in OURS if n != "classifier_norms"):
        record = json.loads((folder / f"{name}.json").read_text())
        assert record["name"] == name
        assert (folder / record["figure"]).read_bytes().startswith(PNG)
        for table, rows in record["tables"].items():
            with open(folder / f"{name}.{table}.csv", newline="") as f:
                assert len(list(csv.DictReader(f))) == len(rows) > 0
        assert record["title"]
        assert record["alt"].endswith(".")
        assert name in end.out
    assert "skipped: the classifier of fedetf is fixed" in " ".join(end.out.split())
    assert not list(folder.glob("classifier_norms.*"))
    for name in ("norms", "collapse", "consistency"):  # it was watched
        assert [row["round"] for row in json.loads((folder / f"{name}.json").read_text())["tables"]["rounds"]] == [
            1,
            2,
            3,
        ]


SKIPPED = {
    "fedavg+ccvr": set(),
    "fedtc": set(),
    "local": {"four_factors", "collapse", "separability"},
    "fedper": set(),
    "centralized": {"consistency"},
    "fedbabu": {"classifier_norms"},
}


@pytest.mark.parametrize("text", SKIPPED)
def test_every_kind_of_recipe(runs, tmp_path, monkeypatch, text: str) -> None:
    quick(monkeypatch)
    found = headway("diagnose", runs(text), ONLY, "--json", f"--out={tmp_path}").json
    assert len(found) == 1
    assert set(found[0]["skipped"]) == SKIPPED[text]
    assert found[0]["failed"] == {}
    assert set(found[0]["findings"]) == set(OURS) - SKIPPED[text]
    for name, summary in found[0]["findings"].items():
        assert summary == json.loads((tmp_path / f"{name}.json").read_text())["summary"]
    if text == "local":
        assert found[0]["skipped"]["collapse"] == (
            "under local every client keeps its own body, so there is no global model"
        )
        assert found[0]["findings"]["norms"]["weight_global"] is None


def test_looking_changes_nothing_of_the_run(copied, monkeypatch) -> None:
    quick(monkeypatch)
    run = copied("fedtc")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    first = headway("diagnose", run, ONLY, "--json")
    assert {p: p.read_bytes() for p in before} == before
    assert headway("diagnose", run, ONLY, "--json").out == first.out  # and it says the same again


def test_overwrite_cleans_up(copied, monkeypatch) -> None:
    quick(monkeypatch)
    run = copied("fedavg+ccvr")
    headway("diagnose", run, "--only=labels", "--quiet")
    (run / "diagnostics" / "labels.png").write_bytes(PNG)
    execute("fedavg", settings(TASK), run, Options(overwrite=True))
    assert not (run / "diagnostics").exists()


def test_several_runs_each_have_their_folder(copied, tmp_path, monkeypatch) -> None:
    quick(monkeypatch)
    a, b = copied("fedtc"), copied("local")
    assert headway("diagnose", a, b, "--only=labels", "-q").code == 0
    assert (a / "diagnostics" / "labels.json").exists()
    assert (b / "diagnostics" / "labels.json").exists()
    found = headway("diagnose", a, b, "--only=labels", "--json", f"--out={tmp_path / 'both'}").json
    assert len({f["folder"] for f in found}) == 2
    assert all((Path(f["folder"]) / "labels.json").exists() and "both" in f["folder"] for f in found)


def test_progress_in_lines(copied, monkeypatch) -> None:
    quick(monkeypatch)
    run = copied("fedtc")
    end = headway("diagnose", run, "--only=norms,labels")
    assert f"{run}: labels (1 of 2)\n" in end.err
    assert f"{run}: norms (2 of 2)\n" in end.err
    assert "\x1b" not in end.err + end.out


def test_fewer_clients(runs, tmp_path) -> None:
    subject = Subject.of(runs("fedtc"), most_clients=2)
    assert [row["client"] for row in norms(subject).tables["per_client"]] == [0, 3]


# ---- requests that are refused
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--only=norm"], "only=norm: there is no such diagnostic; did you mean 'norms'?"),
        (["--only=norms,"], "only='norms,': a name is missing; write names with commas, such as norms,collapse"),
        (["--clients=0"], "clients=0: clients must be a whole number from 1 to 1000"),
        (["--out="], "out='': it is empty; give a folder, such as --out runs/mine, or leave it out"),
    ],
)
def test_bad_requests_end_in_one_sentence(copied, words, sentence) -> None:
    run = copied("fedtc")
    end = headway("diagnose", run, *words)
    assert (end.code, end.out, end.err) == (2, "", f"headway: {sentence}\n")
    assert not (run / "diagnostics").exists()


def test_runs_that_cannot_be_looked_at(copied, tmp_path) -> None:
    run = copied("fedtc")
    (run / "summary.json").unlink()
    end = headway("diagnose", run)
    assert (end.code, end.err) == (2, f"headway: {run} is not a finished run; `headway resume {run}` first\n")
    assert "it has no config.json" in headway("diagnose", tmp_path).err
    good = copied("local")
    end = headway("diagnose", good, run, "--only=labels")  # all are checked before the first is looked at
    assert end.code == 2
    assert not (good / "diagnostics").exists()
    assert "named twice" in headway("diagnose", good, good).err


def test_unknown_names_are_listed_when_nothing_is_near() -> None:
    with pytest.raises(ConfigError, match="known: labels, "):
        chosen("zzz")
    assert chosen("norms,labels") == ["labels", "norms"]
    assert chosen(None) == list(DIAGNOSTICS)


# ---- what the findings say
def test_labels_are_the_partitions_own_figures(runs) -> None:
    subject = Subject.of(runs("fedtc"))
    found = labels(subject)
    facts = describe(subject.task.partition, subject.task.dataset.y.numpy())
    assert {key: found.summary[key] for key in ("js_divergence", "size_gini")} == {
        key: facts[key] for key in ("js_divergence", "size_gini")
    }
    assert sum(row["samples"] for row in found.tables["counts"]) == 200


def test_the_oracle_is_that_of_calibrate(copied) -> None:
    run = copied("fedtc")
    found = separability(Subject.of(run)).summary
    measured = afterwards.calibrate(run, "ccvr")
    assert found["accuracy"] == measured["before"]
    assert found["oracle_accuracy"] == measured["oracle"]
    assert found["oracle_gain"] == measured["oracle"] - measured["before"]
    assert found["ccvr_gain"] == pytest.approx(measured["after"] - measured["before"], abs=0.03)  # sums in other orders
    assert -1 <= found["forecast"] <= 1


def test_classifiers_before_and_after_calibration(copied) -> None:
    run = copied("fedavg+ccvr")
    subject = Subject.of(run)
    found = classifier_norms(subject)
    row = found.tables["global"][3]
    after = subject.saved.run.model().head.weight[3].norm().item()
    assert row["global"] == pytest.approx(subject.net.head.weight[3].norm().item())
    assert row["calibrated"] == pytest.approx(after)
    assert row["global"] != row["calibrated"]
    afterwards.calibrate(run, "ffc")
    again = classifier_norms(Subject.of(run))
    assert list(again.tables["global"][0]) == ["class", "global", "calibrated", "ffc"]


@pytest.mark.parametrize("text", ["fedtc", "fedper"])
def test_classifiers_are_calibrated_for_the_figure_where_nobody_did(copied, text: str) -> None:
    run = copied(text)
    before = sorted(run.rglob("*"))
    found = classifier_norms(Subject.of(run))
    assert sorted(run.rglob("*")) == before  # nothing is written
    row = found.tables["global"][3]
    assert list(row) == ["class", "global", "ccvr"]
    assert row["global"] != row["ccvr"]
    assert found.summary["ccvr_spread"] > 0
    assert "made for this figure, not saved" in found.about
    if text == "fedtc":  # what the command makes of the same run
        afterwards.calibrate(run, "ccvr")
        made = next((run / "calibrated").glob("*.safetensors"))
        assert row["ccvr"] == pytest.approx(Run(run)._net(made).shared_head.weight[3].norm().item())


def test_personal_heads_stand_for_a_global_one_by_their_mean(runs) -> None:
    subject = Subject.of(runs("fedper"))
    store = subject.saved.engine.store
    mean = torch.stack([store.get(k).personal["head.weight"] for k in store.ids()]).mean(0)
    assert torch.allclose(subject.head.weight, mean)
    assert "mean of the clients' own" in four_factors(subject).about
