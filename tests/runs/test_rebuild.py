"""Commands on runs whose data or model are elsewhere, changed, or were never a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from calling import headway
from safetensors.torch import save_file
from torch import nn, zeros

import headway as fl
from headway.base.errors import CheckpointError
from headway.runs.rebuild import advice
from headway.training.settings import settings

TASK = {"clients": 2, "rounds": 1, "partition": "iid", "model": "mlp_small"}
WORDS = [f"--{key}={value}" for key, value in TASK.items()] + ["--quiet"]
AFTERWARDS = {
    "export": ["--to=safetensors"], "diagnose": ["--only=labels", "--quiet"], "calibrate": ["--with=ccvr", "--quiet"],
    "personalise": ["--with=ft", "--quiet"],
}  # fmt: skip
NAMED = "was made from Python objects"
IN_PYTHON = "in Python, use the run that headway.run gave back, whose task holds them"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """The user stands in a folder of their own."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")


def table(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.RandomState(seed).rand(60, 4).astype(np.float32), "y": np.arange(60) % 3}


def on_arrays(**given) -> fl.Run:
    return fl.run("fedavg", data=fl.Dataset.of(**table()), out="runs/a", **TASK | given)


def on_file(name: str = "t/mine.npz") -> Path:
    Path(name).parent.mkdir(exist_ok=True)
    np.savez(name, **table())
    assert headway("run", "fedavg", f"--data={name}", *WORDS, "--out=runs/a").code == 0
    return Path(name)


def refusal(*words: object) -> str:
    end = headway(*words)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1), end
    return end.err


def stopped(run: str = "runs/a") -> None:
    Path(run, "summary.json").unlink()


# ---- runs made from Python objects
@pytest.mark.parametrize("command", AFTERWARDS)
@pytest.mark.parametrize("folder", [False, True])
def test_commands_on_a_run_of_arrays_say_what_it_was_made_from(command, folder):
    on_arrays()
    if folder:  # a folder of that name is not the data
        Path("arrays").mkdir()
        np.savez("arrays/x.npz", **table())
    said = refusal(command, "runs/a", *AFTERWARDS[command])
    assert f"runs/a {NAMED} (data 'arrays'), which cannot be built from config.json alone; {IN_PYTHON}" in said


def test_resume_of_a_run_of_arrays_names_the_call_that_continues_it():
    made = on_arrays()
    whole = (made.path / "model.safetensors").read_bytes()
    stopped()
    said = refusal("resume", "runs/a")
    assert f"runs/a {NAMED} (data 'arrays')" in said
    assert "repeat the same call of headway.run, which continues it" in said
    on_arrays()
    assert (made.path / "model.safetensors").read_bytes() == whole


def test_a_finished_run_of_arrays_is_left_as_it_is_by_resume():
    on_arrays()
    assert headway("resume", "runs/a").code == 0


def test_the_run_that_was_given_back_can_be_used():
    from headway.analysis.export.export import export

    assert Path(export(on_arrays(), "safetensors")["file"]).exists()


def test_a_run_of_a_comparison_of_arrays_is_marked_too():
    fl.compare(["fedavg"], data=fl.Dataset.of(**table()), out="c", **TASK)
    assert NAMED in refusal("export", "c/fedavg/seed-0", "--to=safetensors")


def test_a_run_made_before_such_runs_were_marked_is_known_by_its_name():
    made = on_arrays()
    config = json.loads((made.path / "config.json").read_text())
    assert config.pop("objects") == ["data"]
    (made.path / "config.json").write_text(json.dumps(config))
    assert f"runs/a {NAMED} (data 'arrays')" in refusal("export", "runs/a", "--to=safetensors")


def test_a_network_that_was_handed_over_and_has_no_name_to_find_it_by():
    def network(classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, classes))

    fl.run("fedavg", data="digits", out="runs/a", **TASK | {"model": network})
    assert f"runs/a {NAMED} (model '" in refusal("export", "runs/a", "--to=safetensors")


def test_named_data_and_models_are_no_objects():
    assert json.loads((fl.run("fedavg", out="b", **TASK).path / "config.json").read_text())["objects"] == []


# ---- what changed since
def test_a_file_that_changed_is_named_with_what_to_do():
    file = on_file()
    np.savez(file, **table(seed=1))
    differs = "runs/a was made from something else (data t/mine.npz is not the same)"
    changed = f"{differs}; the contents of t/mine.npz changed: put the old file back"
    for command, words in AFTERWARDS.items():
        assert refusal(command, "runs/a", *words).strip().endswith(changed)
    stopped()
    assert f"{changed}, or make the run again in another folder" in refusal("resume", "runs/a")


def test_weights_that_changed_are_named():
    def save(start: float) -> None:
        save_file({"fc1.weight": zeros(64, 4) + start, "fc1.bias": zeros(64)}, "w.safetensors")

    np.savez("mine.npz", **table())
    save(0.1)
    assert headway("run", "fedavg", "--data=mine.npz", *WORDS, "--weights=w.safetensors", "--out=runs/a").code == 0
    save(0.2)
    said = refusal("export", "runs/a", "--to=safetensors")
    assert "runs/a was made from something else (weights w.safetensors is not the same)" in said
    assert "the contents of w.safetensors changed: put the old file back" in said


def test_a_partition_file_that_changed_is_named():
    np.savez("mine.npz", **table())
    draw = ["partition", "--data=mine.npz", "--clients=2", "--partition=iid", "--overwrite", "--out=p"]
    assert headway(*draw).code == 0
    words = ["--data=mine.npz", "--partition=p", "--rounds=1", "--model=mlp_small", "--quiet", "--out=runs/a"]
    assert headway("run", "fedavg", *words).code == 0
    assert headway(*draw, "--seed=1").code == 0
    said = refusal("export", "runs/a", "--to=safetensors")
    assert "runs/a was made from something else (partition p is not the same)" in said
    assert "the contents of p/partition.json changed: put the old file back" in said


def test_a_setting_that_somebody_changed_is_told_with_both_values():
    on_file()
    config = Path("runs/a/config.json")
    config.write_text(config.read_text().replace('"lr": 0.05', '"lr": 0.5', 1))
    said = refusal("export", "runs/a", "--to=safetensors")
    assert "runs/a was made from something else (lr: 0.05 there, 0.5 here)" in said
    assert "; put lr=0.05 back into runs/a/config.json" in said


# ---- from another folder
@pytest.mark.parametrize("name", ["t/mine.npz", "mine.npz"])
def test_a_run_on_own_data_can_be_used_from_anywhere(tmp_path, monkeypatch, name):
    on_file(name)
    model = Path("runs/a/model.safetensors").read_bytes()
    stopped()
    monkeypatch.chdir(tmp_path)
    assert headway("resume", "project/runs/a", "--quiet").code == 0
    assert Path("project/runs/a/model.safetensors").read_bytes() == model
    for command, words in AFTERWARDS.items():
        assert headway(command, "project/runs/a", *words).code == 0, command
    assert fl.Run("project/runs/a").model()


def test_a_table_with_a_named_column_is_found_too(tmp_path, monkeypatch):
    rows = [f"{a:.3f},{b:.3f},{'xy'[i % 2]}" for i, (a, b) in enumerate(np.random.RandomState(0).rand(40, 2))]
    Path("t.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    assert headway("run", "fedavg", "--data=t.csv:kind", *WORDS, "--out=runs/a").code == 0
    monkeypatch.chdir(tmp_path)
    assert headway("personalise", "project/runs/a", "--with=ft", "--quiet").code == 0


def test_data_that_are_nowhere_name_the_run_and_where_paths_start(tmp_path, monkeypatch):
    file = on_file()
    file.rename(tmp_path / "moved.npz")
    monkeypatch.chdir(tmp_path)
    wanted = f"data 't/mine.npz' of project/runs/a is not there: paths start at {tmp_path}; go to the folder"
    for command, words in AFTERWARDS.items():
        assert wanted in refusal(command, "project/runs/a", *words)
    with pytest.raises(CheckpointError, match="of project/runs/a is not there"):
        fl.Run("project/runs/a").model()


def test_other_data_of_the_same_name_on_the_way_up_are_not_taken(tmp_path):
    file = on_file("mine.npz")
    file.unlink()
    np.savez(tmp_path / "mine.npz", **table(seed=1))
    said = refusal("export", "runs/a", "--to=safetensors")
    assert "runs/a was made from something else (data mine.npz is not the same)" in said


# ---- advice that must hold
def test_the_same_call_continues_a_finished_run_whose_model_is_damaged():
    on_arrays(rounds=3)
    Path("runs/a/calibrated").mkdir()
    Path("runs/a/calibrated/ccvr.safetensors").write_bytes(b"kept")
    whole, times = Path("runs/a/model.safetensors").read_bytes(), Path("runs/a/timings.jsonl").read_bytes()
    Path("runs/a/model.safetensors").write_bytes(whole[:100])
    assert "repeat the same call" in refusal("resume", "runs/a")
    on_arrays(rounds=3)
    assert Path("runs/a/model.safetensors").read_bytes() == whole
    assert Path("runs/a/timings.jsonl").read_bytes() == times  # not a round was trained again
    assert list(Path("runs/a/calibrated").glob("*.safetensors"))


def test_a_finished_run_of_arrays_that_lost_its_partition_file_is_left_and_told():
    on_arrays()
    Path("runs/a/partition.json").unlink()
    end = headway("resume", "runs/a")
    assert end.code == 0
    assert "partition.json cannot be written again: runs/a was made from Python objects" in end.err


def test_weights_that_are_elsewhere_are_not_said_to_have_changed(monkeypatch):
    save_file({"body.layers.1.weight": zeros(1)}, "w.safetensors")
    run, s = Path("runs/a"), settings(TASK | {"weights": "w.safetensors"})
    assert "the contents of w.safetensors changed" in advice(run, s, ["weights_hash"], {})
    Path("away").mkdir()
    monkeypatch.chdir("away")
    assert "w.safetensors is not there: paths start at" in advice(run, s, ["weights_hash"], {})
