"""The run directory: its files, its lock, and `Run`, which reads it."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import filelock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensor_bytes

from headway.errors import CheckpointError, DiskError
from headway.tree import Tree
from headway.values import write_atomic

FORMAT = 1
OWN_FILES = (
    "config.json",
    "partition.json",
    "metrics.jsonl",
    "timings.jsonl",
    "summary.json",
    "model.safetensors",
)


class Table(list[dict[str, Any]]):
    """Rows of a metrics file; `table["global_acc"]` is a column."""

    def __getitem__(self, key: Any) -> Any:
        return [row.get(key) for row in self] if isinstance(key, str) else super().__getitem__(key)


@dataclass(frozen=True)
class Run:
    """A run directory, read back."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.path / "summary.json")

    @cached_property
    def metrics(self) -> Table:
        """One row a round."""
        return read_table(self.path / "metrics.jsonl")

    @cached_property
    def timings(self) -> Table:
        return read_table(self.path / "timings.jsonl")

    @property
    def done(self) -> bool:
        return (self.path / "summary.json").exists()

    def model(self) -> Any:
        """The global model, ready to predict from stored inputs: logits = run.model()(x)."""
        from headway.experiment import load_net

        return load_net(self, self.path / "model.safetensors")

    def personal(self, k: int) -> Any:
        """Client k's own model."""
        from headway.experiment import load_net

        path = self.path / "clients" / f"{k}.safetensors"
        if not path.exists():
            raise CheckpointError(
                f"{self.path} has no model of client {k}; a recipe saves personal models when clients keep parameters "
                f"of their own or it personalises (add +ft)"
            )
        return load_net(self, path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} is not a finished run: it has no {path.name}; `headway resume` it"
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise CheckpointError(f"{path} is damaged: it is not JSON; run it again into another --out") from None


def read_table(path: Path) -> Table:
    if not path.exists():
        return Table()
    lines = path.read_text().splitlines()
    return Table(json.loads(line) for line in lines if line.strip())


def read_model(path: Path) -> tuple[Tree, dict[str, str]]:
    """Tensors and header of a saved model."""
    try:
        with safe_open(path, framework="pt") as f:
            return Tree({k: f.get_tensor(k) for k in f.keys()}), dict(f.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError):
        raise CheckpointError(f"{path} is missing or damaged; run it again into another --out") from None


def save_tensors(tensors: Tree, path: Path, recipe: str) -> None:
    """A model file: tensors in the order of their names, and in its header the recipe whose head it has."""
    data = {k: tensors[k].cpu().contiguous().clone() for k in sorted(tensors)}
    write_atomic(path, tensor_bytes(data, {"format": f"headway-{FORMAT}", "recipe": recipe}))


def append(path: Path, row: Mapping[str, Any]) -> None:
    with disk(path), open(path, "a") as f:
        f.write(json.dumps(row) + "\n")


def flush(path: Path) -> None:
    with disk(path), open(path, "a") as f:
        os.fsync(f.fileno())


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """A disk that refuses ends the run in one sentence; the last checkpoint stays whole."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{path} could not be written ({error.strerror}); free space, then `headway resume {path.parent}`"
        ) from error


def truncate(path: Path, size: int) -> None:
    if path.exists():
        os.truncate(path, size)


def prepare_folder(path: Path) -> None:
    """Make the folder and prove that it can be written, before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.write_bytes(b"ok")
        probe.unlink()
    except FileExistsError:
        raise CheckpointError(f"out={path}: there is a file of that name; choose another --out") from None
    except OSError as error:
        refused = error.errno in (13, 30, 20, 1)  # permission, read-only, not a directory
        message = f"out={path}: the folder cannot be written ({error.strerror}); choose another --out"
        raise (CheckpointError if refused else DiskError)(message) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time in a run directory."""
    lock = filelock.FileLock(path / ".lock")
    owner = path / ".owner"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        who = owner.read_text() if owner.exists() else "another process"
        raise CheckpointError(f"out={path}: {who} is running here; wait for it or choose another --out") from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()


def command_line() -> list[str]:
    return ["headway", *sys.argv[1:]] if Path(sys.argv[0]).name.startswith("headway") else sys.argv[:1]
