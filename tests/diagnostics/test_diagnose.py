"""`headway diagnose`: findings of real runs, on disk whole or not at all, and how the command ends."""

from __future__ import annotations

import csv
import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from calling import headway

from headway import afterwards
from headway.calibration import shared_head
from headway.data.partition import describe
from headway.diagnostics import looking
from headway.diagnostics import separability as separability_module
from headway.diagnostics.catalogue import DIAGNOSTICS, chosen, diagnostic
from headway.diagnostics.factors import four_factors
from headway.diagnostics.finding import Finding, NotApplicable
from headway.diagnostics.labels import labels
from headway.diagnostics.norms import classifier_norms, norms
from headway.diagnostics.separability import separability
from headway.diagnostics.subject import Subject
from headway.errors import ConfigError
from headway.experiment import Options, execute
from headway.methods.ccvr import CCVR
from headway.methods.oracle import Oracle
from headway.rundir import Run
from headway.settings import settings

TASK = {"clients": 4, "rounds": 3, "train_size": 200, "test_size": 80, "model": "mlp_small", "partition": "dir(0.1)"}
OURS = ("labels", "four_factors", "norms", "classifier_norms", "collapse", "consistency", "separability")
ONLY = "--only=" + ",".join(OURS)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs by recipe, made when first asked for; tests copy them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    made: dict[str, Path] = {}

    def ran(text: str, **given) -> Path:
        if text not in made:
            watch = ("norms", "collapse", "consistency") if text == "fedetf" else ()
            options = Options(watch=watch)
            made[text] = execute(text, settings({**TASK, **given}), folder / f"run-{len(made)}", options).path
        return made[text]

    return ran


@pytest.fixture
def copied(runs, tmp_path):
    return lambda text: Path(shutil.copytree(runs(text), tmp_path / text))


def quick(monkeypatch, *names: str) -> None:
    """Diagnostics without their figures and with short retraining: those are what takes time."""
    plain = {name: diagnostic(name) for name in names or OURS}
    for piece in (CCVR, Oracle):
        monkeypatch.setattr(separability_module, piece.__name__, partial(piece, epochs=2))
    monkeypatch.setattr(looking, "diagnostic", lambda name: lambda s: replace(plain[name](s), draw=None))


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
    assert "skipped: the classifier of fedavg+etfproj+balanced is fixed" in " ".join(end.out.split())
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


# ---- what goes wrong on the way
def plain(name: str, rows=({"a": 1},)) -> Finding:
    return Finding(name, name, "about", {"a": 1}, {"t": rows}, "alt.")


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

    monkeypatch.setattr(looking, "diagnostic", fake)
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

    monkeypatch.setattr(looking, "diagnostic", lambda name: broken if name == "norms" else lambda s: plain(name))
    plain("norms").save(tmp_path)
    end = headway("diagnose", runs("fedtc"), "--only=labels,norms,collapse", f"--out={tmp_path}", "--json")
    assert end.code == 1
    told = f"{type(error).__name__}: {error} (test_diagnose.py:"
    assert end.json[0]["failed"]["norms"].startswith(told)
    assert list(end.json[0]["findings"]) == ["labels", "collapse"]
    assert end.err.startswith(f"headway: {runs('fedtc')}: norms failed: {told}")
    assert end.err.count("\n") == 1
    assert not (tmp_path / "norms.json").exists()


# ---- runs without a model
@pytest.fixture(scope="module")
def diverged(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("diverged") / "run"
    run = execute("fedetf", settings({**TASK, "lr": 1e30}), folder)
    assert run.summary["failed"] is not None
    assert run.summary["personal"] is None
    return run.path


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
    from headway.diagnostics import finding

    write = finding.write_atomic

    def stopped(path, data):
        if path.name == "norms.json":
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(looking, "diagnostic", lambda name: lambda subject: plain(name))
    monkeypatch.setattr(finding, "write_atomic", stopped)
    end = headway("diagnose", runs("fedtc"), "--only=labels,norms", f"--out={tmp_path}", "-q")
    assert end.code == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.json", "labels.t.csv"]


def test_a_finding_saved_again_leaves_no_old_table(tmp_path) -> None:
    replace(plain("norms"), tables={"old": [{"a": 1}], "t": [{"a": 2}]}).save(tmp_path)
    plain("norms").save(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["norms.json", "norms.t.csv"]


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
        assert row["ccvr"] == pytest.approx(shared_head(Run(run)._net(made)).weight[3].norm().item())


def test_personal_heads_stand_for_a_global_one_by_their_mean(runs) -> None:
    subject = Subject.of(runs("fedper"))
    store = subject.saved.engine.store
    mean = torch.stack([store.get(k).personal["head.weight"] for k in store.ids()]).mean(0)
    assert torch.allclose(subject.head.weight, mean)
    assert "mean of the clients' own" in four_factors(subject).about


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
    looked = looking.look(subject, ["four_factors", "norms", "consistency"], tmp_path, lambda done, name: None)
    assert "dead" in looked.skipped["four_factors"]
    assert [f.name for f in looked.findings] == ["norms", "consistency"]
