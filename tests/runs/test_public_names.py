"""`headway.runs` is a function and a package."""

from __future__ import annotations

import subprocess
import sys

import headway
from headway.runs.search import runs


def test_the_package_of_runs_can_be_called(tmp_path) -> None:
    run = headway.run("fedavg", rounds=1, clients=2, train_size=50, model="mlp_small", out=tmp_path / "r")
    assert headway.runs(tmp_path) == runs(tmp_path) == [run]
    assert headway.runs(tmp_path, where="lr=7") == []


def test_listing_runs_imports_no_torch() -> None:
    code = "import sys, headway.runs.search; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
