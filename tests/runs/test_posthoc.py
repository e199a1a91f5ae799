"""Calibration and personalisation of a finished run: as if the recipe had had them from the start."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from calling import headway
from run_files import DIGITS
from toy import assert_same

import headway as package
from headway.base import machine
from headway.base.errors import CheckpointError, HeadwayError, RecipeError
from headway.core.state import Client
from headway.engines import PoolEngine
from headway.engines.store import DirectoryStore
from headway.runs import posthoc as afterwards
from headway.runs.directory import read_model, save_tensors
from headway.runs.posthoc import calibrate
from headway.runs.run import Run
from headway.runs.runner import Options, execute
from headway.training.settings import settings

SMALL = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small", "partition": "dir(0.1)",
         "local_test": "0.25"}  # fmt: skip


def ran(text: str, out: Path, options: Options | None = None, **given) -> Run:
    return execute(text, settings({**SMALL, **given}), out, options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run of plain FedAvg; tests copy it."""
    torch.set_num_threads(1)
    return ran("fedavg", tmp_path_factory.mktemp("runs") / "fedavg").path


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.mark.parametrize("piece", ["ccvr(epochs=5)", "ffc", "oracle(epochs=5)", "ccvr(epochs=5,transform=virtual)"])
def test_calibration_equals_the_recipe_with_it_from_the_start(run, tmp_path, piece: str) -> None:
    result = afterwards.calibrate(run, piece)
    whole = ran(f"fedavg+{piece}", tmp_path / "whole")
    assert result["recipe"] == whole.summary["recipe"]
    assert result["before"] == whole.summary["calibrated"]["before"]
    assert result["after"] == whole.summary["calibrated"]["after"]
    assert result["per_class_after"] == whole.summary["calibrated"]["per_class"]
    (ours, head), (theirs, whole_head) = read_model(Path(result["model"])), read_model(whole.path / "model.safetensors")
    assert_same(ours, theirs)
    assert head == whole_head


def test_calibration_reports_before_after_and_the_oracle_bound(run) -> None:
    result = afterwards.calibrate(run, "ccvr")
    assert result["before"] == Run(run).summary["global_acc"]
    assert result["after"] > result["before"]
    assert result["oracle"] == afterwards.calibrate(run, "oracle")["after"]


def test_calibration_files(run) -> None:
    result = afterwards.calibrate(run, "ccvr(epochs=3)")
    model, figures = run / "calibrated" / "ccvr(epochs=3).safetensors", run / "calibrated" / "ccvr(epochs=3).json"
    assert result["model"] == str(model)
    assert json.loads(figures.read_text()) == {k: v for k, v in result.items() if k != "model"}
    assert sorted(p.name for p in (run / "calibrated").iterdir()) == [figures.name, model.name]
    net = Run(run)._net(model)
    task = afterwards.load(run).task
    right = net(task.dataset.x_test).argmax(1) == task.dataset.y_test
    assert result["after"] == int(right.sum()) / len(right)


def test_the_runs_own_files_stay_as_they_were(run) -> None:
    before = {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}
    afterwards.calibrate(run, "ccvr(epochs=2)")
    afterwards.personalise(run, "ft(epochs=1)")
    assert {p: (run / p).read_bytes() for p in before} == before


@pytest.mark.parametrize("piece", ["ft", "finetune(epochs=2,lr=0.05)", "one_step", "extra_epoch(epochs=2)"])
def test_personalisation_equals_the_recipe_with_it_from_the_start(run, tmp_path, piece: str) -> None:
    result = afterwards.personalise(run, piece)
    whole = ran(f"fedavg+{piece}", tmp_path / "whole")
    assert result["recipe"] == whole.summary["recipe"]
    assert result["personal"] == whole.summary["personal"]
    for path in sorted((whole.path / "clients").iterdir()):
        assert (Path(result["models"]) / path.name).read_bytes() == path.read_bytes()


def test_personalisation_files_and_stages(run) -> None:
    result = afterwards.personalise(run, "ft(epochs=2)")
    folder = run / "personalised" / "finetune(epochs=2)"
    assert list(result["personal"]["stages"]) == ["received", "finetuned"]
    assert json.loads((folder / "summary.json").read_text()) == {k: v for k, v in result.items() if k != "models"}
    assert len(list((folder / "clients").iterdir())) == result["personal"]["clients"] == 3


def test_a_personalisation_that_is_stopped_leaves_what_was_there(run, monkeypatch) -> None:
    afterwards.personalise(run, "ft(epochs=1)")
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    stop = iter([False, True, False, True])

    def saved(*args):
        if next(stop):
            raise KeyboardInterrupt
        return save_tensors(*args)

    monkeypatch.setattr("headway.runs.finish.save_tensors", saved)
    for piece in ("ft(epochs=2)", "ft(epochs=1)"):
        with pytest.raises(KeyboardInterrupt):
            afterwards.personalise(run, piece)
        assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
        assert [p.name for p in (run / "personalised").iterdir()] == ["finetune(epochs=1)"]


@pytest.mark.parametrize("text", ["scaffold", "fedper"])
def test_workers_change_no_bit_and_are_gone_afterwards(text, tmp_path, monkeypatch) -> None:
    """Control variates and own heads are sent to the workers."""
    made: list[PoolEngine] = []
    begin = PoolEngine.__init__
    monkeypatch.setattr(PoolEngine, "__init__", lambda self, *args: begin(self, *args) or made.append(self))
    calib = "ccvr(epochs=2,global_head=mean_of_personal)" if text == "fedper" else "ccvr(epochs=2)"
    alone = ran(text, tmp_path / "one").path
    spread = Path(shutil.copytree(alone, tmp_path / "two"))
    files = []
    for path, workers in ((alone, 1), (spread, 2)):
        afterwards.calibrate(path, calib, workers=workers)
        afterwards.personalise(path, "ft(epochs=1)", workers=workers)
        names = sorted(p.relative_to(path) for top in ("calibrated", "personalised") for p in (path / top).rglob("*.*"))
        files.append({str(name): (path / name).read_bytes() for name in names})
    assert len(files[0]) == 2 + 1 + 3
    assert files[0] == files[1]
    assert len(made) == 3  # the calibration, its bound, and the personal models
    assert all(engine.workers == [] for engine in made)


@pytest.mark.parametrize("text", ["scaffold+fn", "fedexp", "fednh", "ditto", "feddyn"])
def test_what_clients_and_server_remember_is_used(tmp_path, text: str) -> None:
    # control variates, the shown average, prototypes, own models: from the checkpoint, not from the start
    out = ran(text, tmp_path / "plain").path
    if text != "ditto":
        result = afterwards.personalise(out, "ft(epochs=1)")
        whole = ran(f"{text}+ft(epochs=1)", tmp_path / "whole").summary
        assert result["personal"] == whole["personal"]
    calib = "ccvr(epochs=2,replace_head=true)" if text == "fednh" else "ccvr(epochs=2)"
    result = afterwards.calibrate(out, calib)
    assert result["after"] == ran(f"{text}+{calib}", tmp_path / "calibrated").summary["global_acc"]


@pytest.mark.parametrize("store", ["auto", "disk"])
def test_clients_beyond_memory_rest_in_a_folder_that_goes_afterwards(store, tmp_path, monkeypatch) -> None:
    out = ran("scaffold+fedper", tmp_path / "run", Options(store=store)).path
    ask = {"calibrate": "ccvr(epochs=2,global_head=mean_of_personal)", "personalise": "ft(epochs=1)"}
    plenty = {name: getattr(afterwards, name)(out, piece) for name, piece in ask.items()}
    gc.collect()
    rest, written, keep = tmp_path / "temporary", [], DirectoryStore.keep
    rest.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(rest))
    monkeypatch.setattr(machine, "memory", lambda: 4000)  # a quarter of it is less than two clients remember

    def noted(self: DirectoryStore, client: Client) -> None:
        keep(self, client)
        written.extend(self.folder.iterdir())

    monkeypatch.setattr(DirectoryStore, "keep", noted)
    for name, piece in ask.items():
        written.clear()
        assert_same(getattr(afterwards, name)(out, piece), plenty[name])
        assert {path.name for path in written} >= {"0.safetensors", "1.safetensors"}
        assert all(path.is_relative_to(rest) for path in written)
        gc.collect()
        assert list(rest.iterdir()) == []
    assert not (out / "working").exists()


def test_loading_a_finished_run_writes_nothing_into_it(tmp_path, monkeypatch) -> None:
    out = ran("scaffold", tmp_path / "run").path
    before = sorted(out.rglob("*"))
    monkeypatch.setattr(machine, "memory", lambda: 0)
    saved = afterwards.load(out)
    assert saved.engine.store.ids() == [0, 1, 2]
    assert sorted(out.rglob("*")) == before


def test_a_calibration_takes_the_place_of_the_runs_own(tmp_path) -> None:
    out = ran("fedavg+ccvr(epochs=2)", tmp_path / "run").path
    result = afterwards.calibrate(out, "ffc")
    assert result["recipe"] == "fedavg+ffc"
    assert result["before"] == Run(out).summary["calibrated"]["before"]


def test_algorithm_2_on_a_saved_fedetf(tmp_path) -> None:
    out = ran("fedetf", tmp_path / "run").path
    stages = afterwards.personalise(out, "alg2(turns=2,epochs=1)")["personal"]["stages"]
    assert list(stages) == ["received", "0", "A1", "B1", "A2", "B2"]


def test_a_frozen_classifier_has_its_oracle_bound_too(tmp_path) -> None:
    out = ran("fedbabu", tmp_path / "run").path
    result = afterwards.calibrate(out, "ccvr(replace_head=true,epochs=3)")
    assert 0 <= result["oracle"] <= 1
    with pytest.raises(RecipeError, match=r"babu freezes it; write ccvr\(replace_head=true\)"):
        afterwards.calibrate(out, "ccvr")


@pytest.mark.parametrize("text", ["ft", "prox", "fedavg", "ccvr+ft", "ccvr+prox", "scaffold+ccvr", "fedprox"])
def test_calibrate_with_something_else_is_refused(run, text: str) -> None:
    with pytest.raises(RecipeError, match=r"it is not a calibration such as ccvr"):
        afterwards.calibrate(run, text)
    assert not (run / "calibrated").exists()


@pytest.mark.parametrize("text", ["ccvr", "prox", "fedper", "ft+ccvr", "scaffold+ft"])
def test_personalise_with_something_else_is_refused(run, text: str) -> None:
    with pytest.raises(RecipeError, match=r"it is not a personalisation such as ft"):
        afterwards.personalise(run, text)
    assert not (run / "personalised").exists()


@pytest.mark.parametrize("text", ["ditto", "alternate"])
def test_a_personalisation_that_acts_during_the_rounds_is_refused(run, text: str) -> None:
    with pytest.raises(RecipeError, match="acts during the rounds and not after them"):
        afterwards.personalise(run, text)


def test_a_piece_that_does_not_fit_the_recipe_is_refused(run, tmp_path) -> None:
    with pytest.raises(RecipeError, match="use it with fedetf, or use ft"):
        afterwards.personalise(run, "alg2")
    out = ran("fedper", tmp_path / "fedper").path
    with pytest.raises(RecipeError, match="fedper has none; drop ccvr, or write"):
        afterwards.calibrate(out, "ccvr")


def test_an_unfinished_run_is_refused(run) -> None:
    (run / "summary.json").unlink()
    with pytest.raises(CheckpointError, match=rf"{run} is not a finished run; headway\.resume\('{run}'\) first"):
        afterwards.calibrate(run, "ccvr")


def test_a_folder_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="is not a run directory: it has no config"):
        afterwards.personalise(tmp_path / "nothing", "ft")


@pytest.mark.parametrize("damage", ["server-*.safetensors", "round-*.json"])
def test_a_damaged_checkpoint_is_refused_and_not_read(run, damage: str) -> None:
    for path in (run / "checkpoint").glob(damage):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="has lost its last checkpoint; make the run again in another folder"):
        afterwards.calibrate(run, "ccvr")


def test_a_missing_checkpoint_is_refused(run) -> None:
    shutil.rmtree(run / "checkpoint")
    with pytest.raises(CheckpointError, match="has lost its last checkpoint"):
        afterwards.personalise(run, "ft")


def test_an_older_checkpoint_is_not_taken_for_the_last(tmp_path) -> None:
    # every round saved; the last one damaged: the round before must not be calibrated in its place
    out = execute("fedavg", settings(SMALL), tmp_path / "run", Options(checkpoint_seconds=0.0)).path
    assert len(list((out / "checkpoint").glob("round-*.json"))) == 2
    (out / "checkpoint" / "round-000002.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has lost its last checkpoint"):
        afterwards.calibrate(out, "ccvr")


def test_the_commands(run) -> None:
    done = headway("calibrate", run, "--with", "ccvr(epochs=3)", "--json")
    assert done.code == 0
    assert {"before", "after", "oracle", "model"} <= set(done.json)
    done = headway("personalise", run, "--with", "ft(epochs=1)", "--json")
    assert done.code == 0
    assert "finetuned" in done.json["personal"]["stages"]
    for words in (("calibrate", run, "--with", "ft"), ("personalise", run, "--with", "ccvr")):
        done = headway(*words)
        assert done.code == 2
        assert done.err.count("\n") == 1
    assert headway("calibrate", run, "--with", "ccvr(epochs=2)").code == 0
    assert headway("personalise", run, "--with", "ft(epochs=1)").code == 0


def test_overwriting_a_run_removes_what_was_made_of_the_old_one(tmp_path):
    run = package.run("fedavg", out=tmp_path / "r", **DIGITS)
    calibrate(run.path, "ccvr(epochs=1)")
    assert (run.path / "calibrated").exists()
    package.run("scaffold", out=tmp_path / "r", overwrite=True, **DIGITS)
    assert not (tmp_path / "r" / "calibrated").exists()


def test_a_path_that_is_no_run_is_not_told_to_resume(tmp_path):
    with pytest.raises(HeadwayError, match=r"it has no config\.json"):
        calibrate(tmp_path / "nope", "ccvr")
