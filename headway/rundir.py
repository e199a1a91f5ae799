"""The run directory: its files, its lock, and `Run`, which reads it."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as tensor_bytes

from headway.errors import CheckpointError, DiskError, HeadwayError, nearest, to_copy
from headway.tree import Tree
from headway.values import write_atomic

if TYPE_CHECKING:
    from headway.models.net import Net
    from headway.task import Task

FORMAT = 1
COPY_THE_RUN = "copy the run to a folder that can be written"  # what helps where a step has its place in the run
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # the disk's fault; any other refusal is a matter of the path
OWN_FILES = (
    "config.json",
    "partition.json",
    "metrics.jsonl",
    "timings.jsonl",
    "watch.jsonl",
    "summary.json",
    "model.safetensors",
    "sampling.json",
    "report.html",
)


class Table(list[dict[str, Any]]):
    """Rows of a metrics file; `table["global_acc"]` is a column."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        known = {name for row in self for name in row}
        if key not in known:
            raise KeyError(f"there is no column '{key}'; {nearest(key, sorted(known))}")
        return [row.get(key) for row in self]


@dataclass(frozen=True)
class Run:
    """A run directory, read back. `task` is the one it was made from, where this process still has it.

    A folder that holds no run is refused at once.
    """

    path: Path
    task: Task | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))  # a string is welcome too
        check_is_run(self.path)

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        found = read_json(self.path / "summary.json")
        if not isinstance(found, dict) or "failed" not in found:
            raise CheckpointError(
                f"{self.path / 'summary.json'} is damaged: it is not a run's; make the run again in another folder"
            )
        return found

    @cached_property
    def metrics(self) -> Table:
        """One row a round; of a finished run all of them."""
        rows = read_table(self.path / "metrics.jsonl")
        rounds = self.summary.get("rounds") if self.done and self.summary["failed"] is None else None
        if isinstance(rounds, int):
            there = [row.get("round") if isinstance(row, dict) else None for row in rows]
            if there != list(range(1, rounds + 1)):
                raise CheckpointError(
                    f"{self.path / 'metrics.jsonl'} is damaged: it has {len(rows)} lines and the run had {rounds} "
                    f"rounds; make the run again in another folder"
                )
        return rows

    @cached_property
    def timings(self) -> Table:
        return read_table(self.path / "timings.jsonl")

    @property
    def done(self) -> bool:
        return is_done(self.path)

    def model(self) -> Net:
        """The global model, ready to predict from stored inputs: logits = run.model()(x)."""
        return self._net(self.path / "model.safetensors")

    def personal(self, k: int) -> Net:
        """Client k's own model."""
        path = self.path / "clients" / f"{k}.safetensors"
        if not path.exists():
            if there := sorted(int(p.stem) for p in path.parent.glob("*.safetensors") if p.stem.isdigit()):
                known = (
                    f"{there[0]} to {there[-1]}" if len(there) == there[-1] - there[0] + 1 else f"{len(there)} others"
                )
                raise CheckpointError(f"client={k}: {self.path} has no model of it; it has those of clients {known}")
            raise CheckpointError(
                f"{self.path} has no model of client {k}; a recipe saves personal models when clients keep parameters "
                f"of their own or it personalises (add +ft)"
            )
        return self._net(path)

    def report(self, out: str | Path | None = None) -> Path:
        """One HTML page about this run, report.html in its folder unless said otherwise."""
        from headway.report.page import report

        return report([self.path], out)

    def _net(self, path: Path) -> Net:
        """A saved model in the net it was trained in."""
        from headway.rebuilt import rebuilt

        tensors, header = read_model(path)
        try:
            task = self.task or rebuilt(self.path, self.config)
            net = task.net_of(header["head"])
        except CheckpointError:  # it names the run and what helps
            raise
        except (HeadwayError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{self.path}: its net cannot be built from config.json ({error}); put back the data and model it was "
                f"made from, or use the run that headway.run gave back"
            ) from None
        return net.cpu().load(tensors).eval()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def is_done(path: Path) -> bool:
    """Whether a folder holds a finished run: its summary is written last."""
    return (path / "summary.json").exists()


def check_is_run(path: Path) -> None:
    """Refuse a folder that is no run directory; one of several runs is told from one of none."""
    if (path / "config.json").exists():
        return
    if inside := sorted(p.parent for way in ("seed-*", "*/seed-*") for p in path.glob(f"{way}/config.json")):
        raise CheckpointError(
            f"{path} is not one run: it holds several, such as {inside[0]}; name one of them, or repeat the "
            f"command that made them, which continues them all"
        )
    raise CheckpointError(f"{path} is not a run directory: it has no config.json; give the folder of a run")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} is not a finished run: it has no {path.name}; `headway resume` it"
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise CheckpointError(f"{path} is damaged: it is not JSON; make the run again in another folder") from None


def check_config(config: Any, out: Path) -> None:
    """Refuse a config.json that another program, version or hand wrote."""
    parts = {"recipe": str, "settings": dict, "options": dict, "identity": dict, "format": int}
    lacks = [
        key for key, kind in parts.items() if not isinstance(config, dict) or not isinstance(config.get(key), kind)
    ]
    if not lacks:
        lacks = [f"options.{key}" for key in ("device", "threads", "engine", "store") if key not in config["options"]]
    if lacks:
        raise CheckpointError(
            f"{out / 'config.json'} is not headway's: it lacks {lacks[0]}; make the run again in another folder"
        )
    if config["format"] != FORMAT:
        raise CheckpointError(
            f"{out} has format {config['format']} and this headway reads {FORMAT}; use the version that wrote it"
        )


def read_table(path: Path) -> Table:
    """The whole lines of a table; a last one without its end is still being written."""
    if not path.exists():
        return Table()
    try:
        return Table(json.loads(line) for line in path.read_text().split("\n")[:-1])
    except ValueError:
        raise CheckpointError(f"{path} is damaged: a line is not JSON; make the run again in another folder") from None


def read_model(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Tensors and header of a saved model."""
    try:
        with safe_open(path, framework="pt") as f:
            header = json.loads((f.metadata() or {})["headway"])
            return Tree({k: f.get_tensor(k) for k in f.keys()}), header  # noqa: SIM118  not a dict
    except (SafetensorError, OSError, KeyError, ValueError):
        again = f"{to_copy('resume', path.parent)} makes it again from the run's checkpoint"
        fix = again if path.name == "model.safetensors" else "make the run again in another folder"
        raise CheckpointError(f"{path} is missing or damaged; {fix}") from None


def is_whole_model(path: Path) -> bool:
    try:
        read_model(path)
    except CheckpointError:
        return False
    return True


def save_tensors(tensors: Tree, path: Path, recipe: str, head: Mapping[str, Any]) -> None:
    """A model file: tensors in the order of their names, and in its header the recipe and the shape of its head.

    One header entry only: several are written in a random order, and the same model must give the same bytes.
    """
    data = {k: tensors[k].cpu().contiguous().clone() for k in sorted(tensors)}
    write_atomic(
        path, tensor_bytes(data, {"headway": json.dumps({"format": FORMAT, "recipe": recipe, "head": dict(head)})})
    )


def append(path: Path, row: Mapping[str, Any]) -> None:
    with disk(path), open(path, "a") as f:
        f.write(json.dumps(row) + "\n")


def flush(path: Path) -> None:
    with disk(path), open(path, "a") as f:
        os.fsync(f.fileno())


@contextmanager
def disk(path: Path, then: str = "") -> Iterator[None]:
    """A disk that refuses ends the run in one sentence; the last checkpoint stays whole."""
    try:
        yield
    except OSError as error:
        then = then or to_copy("resume", path.parent)
        raise DiskError(f"{path} could not be written ({error.strerror}); free space, then {then}") from error


def truncate(path: Path, size: int) -> None:
    """Cut off what was written after a checkpoint; a file that is shorter than the checkpoint says was altered."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise CheckpointError(
            f"{path} has {found} bytes and had {size} at the checkpoint; put it back, "
            f"or start anew with `headway run --overwrite`"
        )
    if found > size:
        os.truncate(path, size)


def prepare_folder(path: Path, given: str = "", fix: str = "choose another --out") -> None:
    """Make the folder and prove that it can be written, before any work is done for it.

    `given` is what the user said where that was not this folder, such as run=runs/mine; `fix` is what helps.
    """
    new = [p for p in (path, *path.parents) if not os.path.lexists(p)]
    with writable(path, given, fix):
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe(path)
        except OSError:
            for folder in new:  # a request that was refused leaves nothing behind
                with suppress(OSError):  # not made, or somebody else has put something in by now
                    folder.rmdir()
            raise


def check_writable(path: Path, given: str = "", fix: str = "choose another --out") -> None:
    """Prove that a folder can be written or made, and leave nothing behind: the work may yet be refused."""
    with writable(path, given, fix):
        there = next(p for p in (path, *path.parents) if os.path.lexists(p))
        if not there.is_dir():
            raise FileExistsError if there == path else NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        probe(there)


def probe(folder: Path) -> None:
    file = folder / f".probe.{os.getpid()}"
    try:
        file.write_bytes(b"ok")
    finally:
        file.unlink(missing_ok=True)  # a full disk lets the file be made and refuses what should go in


@contextmanager
def writable(path: Path, given: str, fix: str) -> Iterator[None]:
    """A folder that cannot be written is one sentence."""
    try:
        yield
    except FileExistsError:
        told = (
            f"{given}: {path} is a file; move it away" if given else f"out={path}: there is a file of that name; {fix}"
        )
        raise CheckpointError(told) from None
    except OSError as error:
        who, full = f"{given}: {path}" if given else f"out={path}: the folder", error.errno in DISK
        told = f"{who} cannot be written ({error.strerror}); {'free space or ' if full else ''}{fix}"
        raise (DiskError if full else CheckpointError)(told) from None


@contextmanager
def locked(path: Path, given: str = "out", fix: str = "wait for it or choose another --out") -> Iterator[None]:
    """One process at a time in a run directory."""
    lock = filelock.FileLock(path / ".lock")
    owner, who = path / ".owner", "another process"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        with suppress(OSError):  # it may end, and take its name away, at this very moment
            who = owner.read_text() or who
        raise CheckpointError(f"{given}={path}: {who} is running here; {fix}") from None
    except OSError as error:
        raise CheckpointError(
            f"{given}={path}: the folder cannot be written ({error.strerror}); copy it to where it can"
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
        if not (path / "config.json").exists():  # no run came of it: the folder is left as it was found
            (path / ".lock").unlink(missing_ok=True)


def command_line() -> list[str]:
    return ["headway", *sys.argv[1:]] if Path(sys.argv[0]).name.startswith("headway") else sys.argv[:1]
