"""One process at a time in a run directory."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from headway.base.errors import CheckpointError
from headway.runs.directory import another_out

LOCK, OWNER = ".lock", ".owner"


@contextmanager
def locked(path: Path, given: str = "out", fix: str = "") -> Iterator[None]:
    """Hold the lock of a run directory, or raise with the process that holds it and the `fix`."""
    lock = filelock.FileLock(path / LOCK)
    owner, who = path / OWNER, "another process"
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        with suppress(OSError):  # it may end, and delete the file, at this very moment
            who = owner.read_text() or who
        raise CheckpointError(
            f"{given}={path}: {who} is running here; {fix or f'wait for it or {another_out()}'}"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"{given}={path}: the folder cannot be written ({error.strerror}); copy it to a folder that can be written"
        ) from None
    try:
        owner.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
        if not (path / "config.json").exists():  # no run was made: the folder is left as it was found
            (path / LOCK).unlink(missing_ok=True)


def is_running(path: Path) -> bool:
    """Whether a process holds the lock; a process that was killed leaves the owner file behind, and no lock."""
    try:
        owner = re.match(r"process (\d+) on (.*)", (path / OWNER).read_text())
    except OSError:
        return False
    if owner and owner[2] == socket.gethostname() and not is_alive(int(owner[1])):
        return False
    lock = filelock.FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except (filelock.Timeout, OSError):  # held, or in a folder that cannot be written: the owner is alive
        return True
    lock.release()
    return False


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True
