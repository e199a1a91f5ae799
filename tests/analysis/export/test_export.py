"""Export: the file alone predicts what headway predicts, in each format and for networks of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from calling import headway
from exported import SMALL, stored_images
from safetensors import safe_open
from torch import nn

import headway as package
from headway.analysis.export import alone as export_alone
from headway.analysis.export import export as exporting
from headway.analysis.export.export import Agreement, compared, export
from headway.base.errors import ModelError
from headway.runs.run import Run
from headway.runs.runner import execute
from headway.training.settings import settings


# ---- the three formats, each in a process without headway
def test_onnx_runs_without_headway(made):
    end = headway("export", made().path, "--to", "onnx", "--out", "m.onnx", "--check", "all", "--json")
    assert (end.code, end.err) == (0, "")
    told = end.json
    assert told["check"]["equal"] == told["check"]["samples"] == 80
    assert told["check"]["run_by"] == "the file alone"
    assert told["check"]["largest_difference"] < 1e-4
    proto = onnx.load("m.onnx")
    (given,) = proto.graph.input
    assert given.name == "x"
    assert given.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    shape = given.type.tensor_type.shape.dim
    assert (bool(shape[0].dim_param), [d.dim_value for d in shape[1:]]) == (True, [1, 8, 8])
    facts = json.loads({p.key: p.value for p in proto.metadata_props}["headway"])
    assert facts["classes"] == [str(c) for c in range(10)]
    assert facts["input"] == {"name": "x", "dtype": "uint8", "shape": ["batch", 1, 8, 8]}
    assert facts["normalisation"]["inside"]
    assert (facts["recipe"], facts["model"], facts["headway"]) == ("fedavg", "global", package.__version__)
    assert len(facts["run_hash"]) == 64


def test_torch_program_runs_without_headway(made):
    told = export(made().path, "torch", out="m.pt2")
    assert told["check"]["equal"] == 80
    extra = {"headway.json": ""}
    program = torch.export.load("m.pt2", extra_files=extra)
    assert json.loads(extra["headway.json"])["output"]["shape"] == ["batch", 10]
    x = torch.from_numpy(stored_images())
    data, images = Path("m.pt2").read_bytes(), stored_images()
    assert not any(image.tobytes() in data for image in images)  # no training data is in the file
    for size in (1, 3, 80):
        z = program.module()(x[:size])
        torch.testing.assert_close(z, made().model()(x[:size]), atol=1e-5, rtol=1e-5)


def test_of_plain_tensors_the_check_tells_what_it_is_and_what_it_is_not(made):
    """They hold no network: another process can say that they are the model's, and only headway's net predicts."""
    end = headway("export", made().path, "--to", "safetensors", "--out", "m.safetensors")
    assert (end.code, end.err) == (0, "")
    *_, checked, note = end.out.splitlines()
    with safe_open("m.safetensors", framework="np") as f:
        count = len(f.keys())
    assert checked == (
        f"checked: read without headway, its {count} tensors are the model's bit for bit; in headway's network they "
        "give 80/80 classes equal, largest logit difference 0"
    )
    assert note == "note: it holds weights and no network, which predicting needs; --to onnx and --to torch hold both"
    assert "without headway" not in headway("export", made().path, "--to", "safetensors", "--check=0").out
    told = headway("export", made().path, "--to", "safetensors", "--json").json
    assert told["check"]["run_by"] == "headway"
    assert told["check"]["tensors_equal"] == count
    assert "weights and no network" in told["note"]


def test_a_file_whose_tensors_are_not_the_models_is_refused(made, monkeypatch):
    def spoilt(chosen, task, facts):
        return exporting.save({k: v + 1 for k, v in chosen.net.tensors().items()}, {})

    monkeypatch.setattr(exporting, "plain_tensors", spoilt)
    with pytest.raises(ModelError, match="the tensors read back are not the model's"):
        export(made().path, "safetensors", out="m.safetensors")
    assert not Path("m.safetensors").exists()


def test_plain_tensors_are_enough_to_build_the_net_by_hand(made):
    assert export(made().path, "safetensors", out="m.safetensors")["check"]["equal"] == 80
    with safe_open("m.safetensors", framework="np") as f:
        facts = json.loads(f.metadata()["headway"])
        w = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118  not a dict
    assert facts["architecture"]["name"] == "mlp_small"
    norm = facts["normalisation"]
    assert not norm["inside"]
    x = stored_images()
    h = (x * norm["scale"] - np.array(norm["mean"])[:, None, None]) / np.array(norm["std"])[:, None, None]
    h = h.reshape(len(h), -1)
    layers = sorted({key.rpartition(".")[0] for key in w if key.startswith("body.")})
    for layer in layers:  # relu(W h + b), layer by layer
        h = np.maximum(h @ w[f"{layer}.weight"].T + w[f"{layer}.bias"], 0)
    z = h @ w["head.weight"].T + w["head.bias"]
    np.testing.assert_allclose(z, made().model()(torch.from_numpy(x)).detach().numpy(), atol=1e-4)


def test_the_checking_process_cannot_import_headway(tmp_path):
    """A file that needs headway fails the check: the block is real."""
    code = Path(export_alone.__file__).read_text() + "\n    import headway\n"
    (tmp_path / "alone.py").write_text(code)
    (tmp_path / "m.safetensors").write_bytes(exporting.save({"a": torch.zeros(1)}, {}))
    words = [sys.executable, "-I", "alone.py", "safetensors", "m.safetensors", "-", "answer"]
    end = subprocess.run(words, capture_output=True, text=True, check=False)
    assert end.returncode == 1
    assert "headway" in end.stderr.splitlines()[-1]


# ---- other data and networks
def test_a_table_of_floats(in_process):
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (60, 5)).astype(np.float32), np.arange(60) % 3
    np.savez("table.npz", x=x, y=y, x_test=x[:20], y_test=y[:20])
    run = execute("fedavg", settings({"data": "table.npz", "clients": 2, "rounds": 1}), Path("table"))
    told = export(run.path, "torch")
    assert told["input"] == {"name": "x", "dtype": "float32", "shape": ["batch", 5]}
    assert told["check"]["equal"] == 20


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4, track_running_stats={running})
        self.last = nn.Linear(4, num_classes)

    def forward(self, x):
        h = self.norm(torch.relu(self.conv(x))).mean((2, 3))
        {more}
        return self.last(h)
"""


def own_run(name: str, running: bool = True, more: str = "") -> Run:
    Path(f"{name}.py").write_text(OWN.format(running=running, more=more))
    return execute("fedavg", settings({**SMALL, "rounds": 1, "model": f"{name}.py:Own"}), Path(name))


def test_a_network_of_the_user_runs_without_its_source():
    told = export(own_run("net").path, "onnx", check=20)
    assert told["check"]["equal"] == 20


def test_batch_statistics_cannot_be_exported(run):
    own = own_run("batchy", running=False)
    for to in ("onnx", "torch", "safetensors"):
        end = headway("export", own.path, "--to", to)
        assert (end.code, end.err.count("\n")) == (2, 1)
        assert "--bn running or --bn group" in end.err
    assert not (own.path / "exported").exists()


def test_a_network_that_branches_on_its_data_is_refused_in_one_sentence():
    own = own_run("branchy", more="h = h * 2 if float(h.sum()) > 0 else h")
    end = headway("export", own.path, "--to", "torch")
    assert (end.code, end.err.count("\n")) == (2, 1)
    assert "use --to safetensors" in end.err
    assert headway("export", own.path, "--to", "safetensors").code == 0


# ---- the check
def test_compared_counts_equal_classes_and_ties():
    wanted = np.array([[1.0, 0.0], [0.5, 0.50001], [0.0, 3.0]])
    found = np.array([[1.1, 0.0], [0.50001, 0.5], [5.0, 3.0]])
    # row 1: same class; row 2: another, 0.00001 apart <= 1e-4 (1 + 0.5); row 3: another, 3 apart; |0 - 5| is largest
    assert compared(wanted, found) == Agreement(3, equal=1, ties=1, difference=5.0)


def test_compared_takes_masked_classes_as_equal():
    z = np.array([[-np.inf, -1.0], [-2.0, -np.inf]])
    assert compared(z, z) == Agreement(2, equal=2, ties=0, difference=0.0)


def test_a_file_that_predicts_otherwise_is_refused_and_not_written(made, monkeypatch, in_process):
    whole = exporting.Standalone.forward
    monkeypatch.setattr(exporting.Standalone, "forward", lambda self, x: -whole(self, x))
    with pytest.raises(ModelError, match=r"predicts another class for .* of 80 test samples"):
        export(made().path, "torch", out="wrong.pt2")
    assert not Path("wrong.pt2").exists()


@pytest.mark.slow
def test_a_network_handed_in_as_an_object(in_process):
    class Net(nn.Sequential):
        def __init__(self, classes: int = 10):
            super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))

    made = package.run("fedavg", model=Net, out="obj", **{k: v for k, v in SMALL.items() if k != "model"})
    assert export(made, "torch", out="m.pt2")["check"]["equal"] == 80
