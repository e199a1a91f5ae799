"""Where an export is written, and requests that are refused in one sentence."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest
import torch
from calling import headway
from exported import SMALL

from headway.analysis.export import export as exporting
from headway.analysis.export.export import export
from headway.base.errors import CheckpointError, ConfigError, HeadwayError
from headway.runs.directory import read_model
from headway.runs.runner import Options, Progress, execute
from headway.training.settings import settings


# ---- bad requests
class Halt(Progress):
    def round(self, row):
        raise RuntimeError("power cut")


def test_an_unfinished_run():
    with pytest.raises(RuntimeError, match="power cut"):
        execute("fedavg", settings(SMALL), Path("cut"), Options(progress=Halt()))
    with pytest.raises(CheckpointError, match=r"cut is not a finished run; headway\.resume\('cut'\) first"):
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
def test_no_path_of_the_machine_is_in_the_file(run, in_process, to):
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
    with pytest.raises(HeadwayError, match=r"made from something else \(data digits is not the same\); use the files"):
        export(run, "torch")


def test_overwriting_a_run_takes_its_exports_along(run, in_process):
    export(run, "torch", check=0)
    execute("fedavg", settings({**SMALL, "rounds": 1}), run, Options(overwrite=True))
    assert not (run / "exported").exists()
