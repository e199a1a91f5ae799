"""Finished runs that the tests of run directories share."""

import shutil
from pathlib import Path

import pytest
import torch
from calling import SMALL, SMALL_TASK, headway

from headway.runs.runner import Options, Progress, execute
from headway.training.settings import settings


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Finished runs of three rounds by recipe, each made when first asked for; tests only read them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    runs = {}

    def make(recipe):
        if recipe not in runs:
            out = folder / recipe
            end = headway("run", recipe, *SMALL, "--rounds=3", "--checkpoint-seconds=0", f"--out={out}")
            assert (end.code, end.err) == (0, "")
            runs[recipe] = out
        return runs[recipe]

    return make


@pytest.fixture
def copied(made, tmp_path):
    """A finished run to spoil."""
    return shutil.copytree(made("fedavg"), tmp_path / "copy")


class Halt(Progress):
    """Ends a run in its second round, as a crash would."""

    def round(self, row):
        if row["round"] == 2:
            raise RuntimeError("power cut")


def ran(recipe, out, options=None, **given):
    execute(recipe, settings({**SMALL_TASK, **given}), out, options)


@pytest.fixture(scope="session")
def several(tmp_path_factory):
    """fedavg and scaffold at two rates, finished; a run cut short after one of its three rounds; one that diverged."""
    torch.set_num_threads(1)
    top = tmp_path_factory.mktemp("several")
    ran("fedavg", top / "avg")
    ran("fedavg", top / "deep" / "avg-fast", lr=0.2, partition="iid")
    ran("scaffold+fn", top / "scaffold", seed=3)
    with pytest.raises(RuntimeError, match="power cut"):
        ran("fedavg", top / "cut", Options(progress=Halt(), checkpoint_seconds=0.0), rounds=3)
    ran("fedavg", top / "wild", lr=1e30)
    return top


@pytest.fixture
def top(several, tmp_path, monkeypatch):
    """A copy of these to spoil, named runs/ and seen from beside it."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(several, tmp_path / "runs"))
