"""CKA of many inputs stays in little memory."""

from __future__ import annotations

import os
import subprocess
import sys

CLIENTS, INPUTS = 8, 10_000
GROWTH = 80_000_000  # bytes; two clients' activations of a layer, 10,000 x 200 in float64, are 32 MB
LOOK = f"""
import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch
from diagnosed import blobs, finished, task_on

from headway.analysis.diagnostics.cka import cka

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

few = blobs(10, each=40, shape=(20,))
rows = torch.arange({INPUTS}) % len(few.y_test)
noise = torch.randn({INPUTS}, 20, generator=torch.Generator().manual_seed(0))
many = replace(few, x_test=few.x_test[rows] + noise, y_test=few.y_test[rows])
subject = finished("fedavg", Path(sys.argv[1]), task_on(many, model="mlp", clients={CLIENTS}, rounds=1))
x = subject.test[0]
for local in subject.local_models():
    pass
cka(replace(subject, kept={{}}, most_clients=2))  # what is loaded once does not count
before = peak()
found = cka(subject)
assert found.summary["clients"] == {CLIENTS} and found.summary["inputs"] == {INPUTS}
print(sum(row["width"] for row in found.tables["layers"]), peak() - before)
"""


def test_memory_does_not_grow_with_clients(tmp_path) -> None:
    """What all clients' layers give, held at once, would be more than the bound.

    A look at two clients comes first: it loads what is loaded once, and takes what a pair takes.
    """
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    columns, growth = map(int, done.stdout.split()[-2:])
    assert 4 * CLIENTS * INPUTS * columns > GROWTH
    assert growth < GROWTH
