"""The run directory: the names of its files, and how each is read and written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from headway.base.errors import CheckpointError, DiskError, nearest, to_copy
from headway.base.serialise import write_atomic
from headway.base.tree import Tree
from headway.base.wording import either, option, resume_call

FORMAT = 1
COPY_THE_RUN = "copy the run to a folder that can be written"  # the fix where a step writes into the run
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # the disk's fault; any other error is a matter of the path
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
OWN_FOLDERS = (
    "checkpoint", "clients", "working", "calibrated", "personalised", "diagnostics", "exported", "tensorboard",
    "tracking",
)  # fmt: skip
NEW_FOLDER = "make the run again in another folder"  # the fix where a file of the run is lost


def another_out() -> str:
    return f"choose another {option('out')}"


class Table(list[dict[str, Any]]):
    """Rows of a metrics file; `table["global_acc"]` is a column."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        known = {name for row in self for name in row}
        if key not in known:
            raise KeyError(f"there is no column '{key}'; {nearest(key, sorted(known))}")
        return [row.get(key) for row in self]


def is_done(path: Path) -> bool:
    """Whether a run has ended: its summary is written last."""
    return (path / "summary.json").exists()


def is_finished(path: Path) -> bool:
    """Whether a run has ended and its model can be read; a model that cannot is written again from the checkpoint."""
    return is_done(path) and is_readable_model(path / "model.safetensors")


def check_is_run(path: Path) -> None:
    """Refuse a folder that is no run directory; the message differs for a folder of several runs."""
    if (path / "config.json").exists():
        return
    if inside := sorted(p.parent for way in ("seed-*", "*/seed-*") for p in path.glob(f"{way}/config.json")):
        raise CheckpointError(
            f"{path} is not one run: it holds several, such as {inside[0]}; name one of them, or repeat the "
            f"{either(python='call', command='command')} that made them, which continues them all"
        )
    raise CheckpointError(f"{path} is not a run directory: it has no config.json; give the folder of a run")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.parent} is not a finished run: it has no {path.name}; {resume_call(path.parent)} first"
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise CheckpointError(f"{path} is damaged: it is not JSON; {NEW_FOLDER}") from None


def check_config(config: Any, out: Path) -> None:
    """Refuse a config.json that another program or version wrote, or that was edited."""
    parts = {"recipe": str, "settings": dict, "options": dict, "identity": dict, "format": int}
    lacks = [
        key for key, kind in parts.items() if not isinstance(config, dict) or not isinstance(config.get(key), kind)
    ]
    if not lacks:
        lacks = [f"options.{key}" for key in ("device", "threads", "engine", "store") if key not in config["options"]]
    if lacks:
        raise CheckpointError(f"{out / 'config.json'} is not headway's: it lacks {lacks[0]}; {NEW_FOLDER}")
    if config["format"] != FORMAT:
        raise CheckpointError(
            f"{out} has format {config['format']} and this headway reads {FORMAT}; use the version that wrote it"
        )


def read_table(path: Path) -> Table:
    """The complete lines of a .jsonl file; a last line without its line end is still being written."""
    if not path.exists():
        return Table()
    try:
        return Table(json.loads(line) for line in path.read_text().split("\n")[:-1])
    except ValueError:
        raise CheckpointError(f"{path} is damaged: a line is not JSON; {NEW_FOLDER}") from None


def read_model(path: Path) -> tuple[Tree, dict[str, Any]]:
    """Tensors and header of a saved model."""
    try:
        with safe_open(path, framework="pt") as f:
            header = json.loads((f.metadata() or {})["headway"])
            return Tree({k: f.get_tensor(k) for k in f.keys()}), header  # noqa: SIM118  not a dict
    except (SafetensorError, OSError, KeyError, ValueError):
        again = f"{resume_call(path.parent)} makes it again from the run's checkpoint"
        fix = again if path.name == "model.safetensors" else NEW_FOLDER
        raise CheckpointError(f"{path} is missing or damaged; {fix}") from None


def is_readable_model(path: Path) -> bool:
    try:
        read_model(path)
    except CheckpointError:
        return False
    return True


def save_tensors(tensors: Tree, path: Path, recipe: str, head: Mapping[str, Any]) -> None:
    """Write a model file: tensors in the order of their names; in its header the recipe and the kind of head.

    The header has one entry: several are written in a random order, and the same model must give the same bytes.
    """
    from safetensors.torch import save  # it imports torch, which listing runs does without

    data = {k: tensors[k].cpu().contiguous().clone() for k in sorted(tensors)}
    header = {"format": FORMAT, "recipe": recipe, "head": dict(head)}
    write_atomic(path, save(data, {"headway": json.dumps(header)}))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, complete or not at all."""
    write_atomic(path, json.dumps(value, indent=1) + "\n")


def append(path: Path, row: Mapping[str, Any]) -> None:
    with disk(path), open(path, "a") as f:
        f.write(json.dumps(row) + "\n")


def flush(path: Path) -> None:
    with disk(path), open(path, "a") as f:
        os.fsync(f.fileno())


@contextmanager
def disk(path: Path, then: str = "") -> Iterator[None]:
    """Turn a failed write into one sentence; the last checkpoint is not touched."""
    try:
        yield
    except OSError as error:
        then = then or resume_call(path.parent)
        raise DiskError(f"{path} could not be written ({error.strerror}); free space, then {then}") from error


def truncate(path: Path, size: int) -> None:
    """Cut off what was written after a checkpoint; a file shorter than at the checkpoint was edited, and is refused."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise CheckpointError(
            f"{path} has {found} bytes and had {size} at the checkpoint; put it back, or start again with "
            + either(python="headway.run(..., overwrite=True)", command=to_copy("run", "--overwrite"))
        )
    if found > size:
        os.truncate(path, size)


def prepare_folder(path: Path, given: str = "", fix: str = "") -> None:
    """Make the folder and check that it can be written, before any work is done.

    `given` is the user's argument where that was not this folder, such as run=runs/mine.
    """
    new = [p for p in (path, *path.parents) if not os.path.lexists(p)]
    with writable(path, given, fix):
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe(path)
        except OSError:
            for folder in new:  # a refused request leaves nothing behind
                with suppress(OSError):  # it was not made, or another process has written into it by now
                    folder.rmdir()
            raise


def check_writable(path: Path, given: str = "", fix: str = "") -> None:
    """Check that a folder can be written or made, and leave nothing behind: the work may yet be refused."""
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
        file.unlink(missing_ok=True)  # on a full disk the file is made and its contents are refused


@contextmanager
def writable(path: Path, given: str, fix: str) -> Iterator[None]:
    """Turn a folder that cannot be written into one sentence."""
    fix = fix or another_out()
    try:
        yield
    except FileExistsError:
        own = f"{given}: {path} is a file; move it away"
        raise CheckpointError(own if given else f"out={path}: there is a file of that name; {fix}") from None
    except OSError as error:
        who, full = f"{given}: {path}" if given else f"out={path}: the folder", error.errno in DISK
        text = f"{who} cannot be written ({error.strerror}); {'free space or ' if full else ''}{fix}"
        raise (DiskError if full else CheckpointError)(text) from None
