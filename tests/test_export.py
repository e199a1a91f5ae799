"""Export: the file predicts by itself what headway predicts, for every kind of head."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from calling import headway
from safetensors import safe_open
from torch import nn

import headway as package
from headway import afterwards, export_alone
from headway import export as exporting
from headway.errors import CheckpointError, ConfigError, HeadwayError, ModelError
from headway.experiment import Options, Progress, execute
from headway.export import Agreement, compared, export
from headway.rundir import Run, read_model
from headway.settings import settings

SMALL = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small", "local_test": "0.3"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of any recipe, made once."""
    runs: dict[str, Run] = {}
    top = tmp_path_factory.mktemp("exported")

    def make(recipe: str = "fedavg", **given) -> Run:
        key = json.dumps([recipe, given])
        if key not in runs:
            torch.set_num_threads(1)
            runs[key] = execute(recipe, settings({**SMALL, **given}), top / str(len(runs)))
        return runs[key]

    return make


@pytest.fixture
def run(made, tmp_path):
    """A copy of plain FedAvg to spoil."""
    return Path(shutil.copytree(made().path, tmp_path / "run"))


@pytest.fixture
def in_process(monkeypatch):
    """The file is run here instead of in a process of its own: seconds less, the same code."""

    def run_here(to, data, x, chosen, task):
        file = Path("model")
        file.write_bytes(data)
        runner = {"onnx": export_alone.run_onnx, "torch": export_alone.run_torch}[to]
        return runner(str(file) if to == "onnx" else io.BytesIO(data), x.numpy())

    monkeypatch.setattr(exporting, "run_alone", run_here)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def stored_images() -> np.ndarray:
    """Test digits as they are stored, uint8 [N, 1, 8, 8]."""
    return package.task.build(settings(SMALL)).dataset.x_test.numpy()


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
    assert not any(image.tobytes() in data for image in images)  # nobody's data travels with the model
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


# ---- every head
NEAREST = "protoalign(predict=nearest)+ownmodel"
HEADS = [
    ("fedetf", None),  # projection, unit features, a frozen frame, a learnable scale
    ("fedavg+cosine", None),
    ("fedtc", None),  # twin: the received classifier
    ("fedtc", "client:1"),  # twin: the client's own
    ("fedrod", None),
    ("fedrod", "client:2"),  # dual: generic + private
    ("fedrod(private=hyper)", "client:0"),  # the private part is made from the client's class frequencies
    (NEAREST, "client:1"),  # nearest prototype
    pytest.param("fedper", "client:0", marks=pytest.mark.slow),
    pytest.param("fednh", None, marks=pytest.mark.slow),
    ("fedavg+ccvr(epochs=3, transform=virtual, power=0.5)", None),
]


@pytest.mark.parametrize(("recipe", "model"), HEADS)
def test_every_head_predicts_as_headway_does(made, in_process, recipe, model):
    told = export(made(recipe).path, "torch", model, out="m.pt2", check=None)
    assert told["check"]["equal"] + told["check"]["ties"] == 80
    assert told["check"]["largest_difference"] < 1e-3


def test_the_nearest_prototype_in_onnx(made, in_process):
    told = export(made(NEAREST).path, "onnx", "client:1", out="m.onnx", check=None)
    assert told["check"]["equal"] + told["check"]["ties"] == 80


def test_the_heads_are_what_the_list_says(made):
    assert read_model(made("fedtc").path / "model.safetensors")[1]["head"]["kind"] == "twin"
    assert read_model(made("fedrod(private=hyper)").path / "model.safetensors")[1]["head"]["kind"] == "hyper"
    assert read_model(made(NEAREST).path / "clients" / "1.safetensors")[1]["head"]["kind"] == "nearest"
    assert read_model(made(HEADS[-1][0]).path / "model.safetensors")[1]["head"]["power"] == 0.5


def test_a_personal_file_answers_as_the_client_and_not_as_the_server(made, in_process):
    run, x = made("fedrod"), torch.from_numpy(stored_images())
    for model, wanted in (("client:2", run.personal(2).personal(x)), ("global", run.model()(x))):
        export(run.path, "torch", model, out="m.pt2")
        torch.testing.assert_close(torch.export.load("m.pt2").module()(x), wanted, atol=1e-5, rtol=1e-5)


# ---- which model
def test_global_of_a_calibrated_run_is_the_model_before_calibration(made, in_process):
    run, x = made("fedavg+ccvr(epochs=3)"), torch.from_numpy(stored_images())
    plain = made("fedavg")  # the same rounds, no calibration
    told = export(run.path, "torch", "global", out="before.pt2")
    assert told["model"] == "global"
    torch.testing.assert_close(torch.export.load("before.pt2").module()(x), plain.model()(x), atol=1e-5, rtol=1e-5)
    for model in (None, "calibrated@run"):
        told = export(run.path, "torch", model, out="after.pt2")
        assert told["model"] == "calibrated"
        torch.testing.assert_close(torch.export.load("after.pt2").module()(x), run.model()(x), atol=1e-5, rtol=1e-5)


def test_calibrations_made_later_newest_or_named(run, in_process):
    with pytest.raises(CheckpointError, match="was never calibrated"):
        export(run, "torch", "calibrated")
    first = read_model(Path(afterwards.calibrate(run, "ccvr(epochs=2)")["model"]))[0]
    second = read_model(Path(afterwards.calibrate(run, "ffc")["model"]))[0]

    def weight(model):
        export(run, "safetensors", model, out="m.safetensors", check=0)
        return read_model(Path("m.safetensors"))[0]["head.weight"]

    assert torch.equal(weight("calibrated"), second["head.weight"])
    assert torch.equal(weight("calibrated@ccvr"), first["head.weight"])
    assert torch.equal(weight("global"), read_model(run / "model.safetensors")[0]["head.weight"])
    with pytest.raises(CheckpointError, match="did you mean 'ffc'"):
        export(run, "torch", "calibrated@fcc")


def test_personal_models_made_later(run, in_process):
    with pytest.raises(CheckpointError, match=r"headway personalise .* --with ft"):
        export(run, "torch", "client:1")
    afterwards.personalise(run, "ft(epochs=1)")
    told = export(run, "torch", "client:1")
    assert told["model"].startswith("client 1 finetune")
    assert Path(told["file"]).parent == run / "exported"
    assert export(run, "torch", "client:1@ft")["check"]["equal"] == 80


def test_a_global_model_with_an_untrained_classifier_comes_with_a_note(made):
    end = headway("export", made("fedper").path, "--to", "safetensors", "--out", "m.safetensors", "--check=0")
    assert "note: clients of this recipe keep their classifiers" in end.out
    assert "not checked" in end.out


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


# ---- bad requests
class Halt(Progress):
    def round(self, row):
        raise RuntimeError("power cut")


def test_an_unfinished_run():
    with pytest.raises(RuntimeError, match="power cut"):
        execute("fedavg", settings(SMALL), Path("cut"), Options(progress=Halt()))
    with pytest.raises(CheckpointError, match="`headway resume cut` first"):
        export("cut", "onnx")


@pytest.mark.parametrize(
    ("recipe", "words", "told"),
    [
        ("fedavg", ["--to", "onxx"], "did you mean 'onnx'?"),
        ("fedavg", ["--to", "onnx", "--model", "globl"], "write global, calibrated or client:3"),
        ("fedavg", ["--to", "onnx", "--model", "client"], "write global, calibrated or client:3"),
        ("fedavg", ["--to", "onnx", "--model", "client:9"], "the run has clients 0 to 2"),
        ("fedavg", ["--to", "onnx", "--check", "some"], "check must be all or a whole number"),
        ("fedavg", ["--to", "onnx", "--out", ""], "it is empty"),
        ("local", ["--to", "onnx"], "there is no global model; use --model client:0"),
    ],
)
def test_a_wrong_request_is_one_sentence(made, recipe, words, told):
    end = headway("export", made(recipe).path, *words)
    assert (end.code, end.out, end.err.count("\n")) == (2, "", 1)
    assert told in end.err


def test_no_run_at_all(tmp_path):
    end = headway("export", tmp_path, "--to", "torch")
    assert (end.code, "no config.json" in end.err) == (2, True)


def test_the_runs_own_files_are_safe(run):
    before = (run / "model.safetensors").read_bytes()
    for own in ("model.safetensors", "clients/0.safetensors"):
        with pytest.raises(ConfigError, match="among the run's own files"):
            export(run, "safetensors", out=run / own)
    assert (run / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(("to", "end"), [("onnx", ".onnx"), ("torch", ".pt2"), ("safetensors", ".safetensors")])
def test_only_an_earlier_export_is_replaced_unasked(run, in_process, to, end):
    own = Path(f"m{end}")
    foreign = (run / "model.safetensors").read_bytes() if to == "safetensors" else b"years of work"
    own.write_bytes(foreign)
    told = headway("export", run, "--to", to, "--out", own, "--check", "0")
    assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert "headway did not export it" in told.err
    assert own.read_bytes() == foreign
    for more in (["--overwrite"], []):  # then it is an export, and is replaced without a word
        assert headway("export", run, "--to", to, "--out", own, "--check", "0", *more).code == 0
    assert own.read_bytes() != foreign


@pytest.mark.parametrize("name", ["m.txt", "m.pt2", "afile", ".onnx"])
def test_a_name_of_another_kind_is_refused(run, name):
    told = headway("export", run, "--to", "onnx", "--out", name)
    assert (told.code, told.err.count("\n")) == (2, 1)
    assert "ends in .onnx" in told.err
    assert not Path(name).exists()


@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_no_path_of_the_machine_travels_with_the_model(run, in_process, to):
    data = Path(export(run, to, check=0)["file"]).read_bytes()
    if to == "torch":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            data = b"".join(archive.read(name) for name in archive.namelist())
    home = Path(exporting.__file__).parent
    for trace in (home, torch.__path__[0], "export.py", 'stack_trace": "', "File \\"):
        assert str(trace).encode() not in data, trace


def test_missing_packages(run, monkeypatch):
    real = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda n: None if n == "onnxruntime" else real(n))
    with pytest.raises(ConfigError, match=r"needs onnxruntime, not installed here; pip install 'headway\[onnx\]'"):
        export(run, "onnx")


def test_a_model_of_no_numbers(run):
    tensors, header = read_model(run / "model.safetensors")
    tensors["head.bias"][0] = torch.nan
    exporting.write_atomic(run / "model.safetensors", exporting.save(tensors, {"headway": json.dumps(header)}))
    with pytest.raises(CheckpointError, match="values that are no numbers"):
        export(run, "torch")


def test_data_that_changed_since(run):
    config = json.loads((run / "config.json").read_text())
    config["identity"]["data_hash"] = "other"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadwayError, match=r"data digits is not what \S+run was made from; use the files"):
        export(run, "torch")


@pytest.mark.slow
def test_a_network_handed_in_as_an_object(in_process):
    class Net(nn.Sequential):
        def __init__(self, classes: int = 10):
            super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, classes))

    made = package.run("fedavg", model=Net, out="obj", **{k: v for k, v in SMALL.items() if k != "model"})
    assert export(made, "torch", out="m.pt2")["check"]["equal"] == 80


def test_overwriting_a_run_takes_its_exports_along(run, in_process):
    export(run, "torch", check=0)
    execute("fedavg", settings({**SMALL, "rounds": 1}), run, Options(overwrite=True))
    assert not (run / "exported").exists()
