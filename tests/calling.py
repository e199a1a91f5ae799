"""The command line from inside a test: one call, its exit code and what it printed."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from typing import Any
from unittest import mock

from headway import cli

# Three clients, two rounds, 200 digits and one hidden layer: well under a second.
SMALL = ("--clients=3", "--rounds=2", "--train-size=200", "--test-size=80", "--model=mlp_small", "--quiet")
SMALL_TASK = {"clients": 3, "rounds": 2, "train_size": 200, "test_size": 80, "model": "mlp_small"}


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
