"""Finished runs that the tests of `headway diagnose` share."""

import shutil
from pathlib import Path

import pytest
import torch
from diagnosing import TASK

from headway.runs.runner import Options, execute
from headway.training.settings import settings


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Finished runs by recipe, made when first asked for; tests only read them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    made = {}

    def ran(text):
        if text not in made:
            watch = ("norms", "collapse", "consistency") if text == "fedetf" else ()
            made[text] = execute(text, settings(TASK), folder / f"run-{len(made)}", Options(watch=watch)).path
        return made[text]

    return ran


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a finished run to spoil."""
    return lambda text: Path(shutil.copytree(runs(text), tmp_path / text))


@pytest.fixture(scope="session")
def diverged(tmp_path_factory):
    """A run whose loss was not finite."""
    torch.set_num_threads(1)
    run = execute("fedetf", settings({**TASK, "lr": 1e30}), tmp_path_factory.mktemp("diverged") / "run")
    assert run.summary["failed"] is not None
    assert run.summary["personal"] is None
    return run.path
