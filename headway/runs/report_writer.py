"""What writes the report page. It stands in a layer above (analysis): `headway/__init__.py` connects it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

Writer = Callable[[Sequence[Path], str | Path | None], Path]  # (run directories, file) -> the file
_writers: list[Writer] = []


def connect(writer: Writer) -> None:
    _writers[:] = [writer]


def write_report(runs: Sequence[Path], out: str | Path | None) -> Path:
    return _writers[0](runs, out)
