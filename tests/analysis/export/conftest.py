"""Finished runs that the tests of export share."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from exported import SMALL

from headway.analysis.export import alone as export_alone
from headway.analysis.export import export as exporting
from headway.runs.runner import execute
from headway.training.settings import settings


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A finished run of any recipe, made once; tests only read it."""
    runs = {}
    top = tmp_path_factory.mktemp("exported")

    def make(recipe="fedavg", **given):
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
def _in_tmp(in_tmp):
    """Files are written beside each test."""
