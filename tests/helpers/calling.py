"""The command line from inside a test: one call, its exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import headway as package
from headway.cli import app as cli

# Three clients, two rounds, 200 digits and one hidden layer: well under a second.
SMALL = ("--clients=3", "--rounds=2", "--train-size=200", "--test-size=80", "--model=mlp_small", "--quiet")
SMALL_TASK = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"}
ESCAPE = "\x1b"


@dataclass(frozen=True)
class Called:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as strict JSON: no NaN, nothing beside it."""
        return json.loads(self.out, parse_constant=refuse)


def headway(*words: object) -> Called:
    """`headway words...` in this process; a bug comes out as the exception it is."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["headway", *map(str, words)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            return Called(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main returned")


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def started(*words: object, env_more: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    """`headway words...` in a process of its own, with pipes of its own."""
    root = Path(package.__file__).parents[1]
    env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | (env_more or {})
    command = [sys.executable, "-m", "headway.cli.app", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, **more)


def files(folder: str | Path = ".") -> set[str]:
    """Every file below a folder, but for the lock of a run directory."""
    return {str(p.relative_to(folder)) for p in Path(folder).rglob("*") if p.is_file() and p.name != ".lock"}


def refusal(*words: object) -> str:
    """The one sentence with which a command refuses."""
    end = headway(*words)
    assert end.code == 2
    assert end.err.count("\n") == 1
    return end.err


def listed(*words: object) -> dict[str, dict[str, Any]]:
    """What `headway runs` lists, by name."""
    return {row["run"]: row for row in headway("runs", *words, "--json").json}
