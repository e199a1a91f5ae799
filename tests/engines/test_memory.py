"""Freed memory is kept while rounds run, and given back between clients once there is much of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace

import pytest
from diagnosed import finished

from headway.analysis.diagnostics.separability import separability
from headway.analysis.diagnostics.tsne import tsne
from headway.engines import memory
from headway.runs.posthoc import load

HOARD = """
import torch
from headway.engines.memory import GiveBackGrowth, keep_freed_memory, resident

assert keep_freed_memory()
tick = GiveBackGrowth(most=100 * 2**20)
start = resident()
for mebibytes in (60, 150):
    torch.ones(mebibytes * 2**18)  # freed at once
    held = resident()
    tick(0, 2)
    print((held - start) // 2**20, (resident() - start) // 2**20)
"""


GLIBC, VERSION = platform.libc_ver()


@pytest.mark.skipif(
    GLIBC != "glibc" or tuple(map(int, VERSION.split("."))) < (2, 35), reason="large blocks are given back at once"
)
def test_only_what_has_grown_beyond_the_bound_is_given_back() -> None:
    """60 MiB stay where they are; 150 go, but for a little."""
    done = subprocess.run(
        [sys.executable, "-c", HOARD], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    (few, still), (many, gone) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert min(few, still) >= 55
    assert many >= 145
    assert gone < 30


def test_the_lowest_point_counts(monkeypatch) -> None:
    """What the process shed by itself counts as growth when it comes back."""
    sizes, given = [900, 500, 600, 650, 500, 560], []
    monkeypatch.setattr(memory, "resident", lambda: sizes.pop(0))
    monkeypatch.setattr(memory, "give_back", lambda: given.append(len(sizes)))
    tick = memory.GiveBackGrowth(most=100)
    for _ in range(3):
        tick(0, 1)  # 500; 600 is not more than 100 above; 650 is, and 500 is left
    tick(0, 1)  # 560
    assert given == [2]  # once, while two sizes were still to come


@pytest.mark.parametrize("diagnostic", [tsne, separability])
def test_a_look_at_all_training_features_ticks_between_clients(tmp_path, diagnostic) -> None:
    subject = finished("fedavg", tmp_path / "run")
    seen = []
    subject.saved.engine.tick = lambda done, total: seen.append((done, total))
    clients = len(subject.task.data)
    diagnostic(replace(subject, kept={}))
    assert seen == [(k, clients) for k in range(clients)]


def test_a_loaded_run_gives_back(tmp_path) -> None:
    subject = finished("fedavg", tmp_path / "run")
    assert isinstance(load(subject.saved.run.path, task=subject.task).engine.tick, memory.GiveBackGrowth)
