"""Processes as the system shows them under /proc."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true: Callable[[], bool], seconds: float, every: float = 0.1) -> None:
    """Look again until it is true; raises TimeoutError if it does not become true in that time."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"not true within {seconds} s")
        time.sleep(every)


def descends(path: Path, ancestor: int) -> bool:
    """Whether a process comes from this one: other clusters on this machine are none of ours."""
    pid = int(path.name)
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if pid == ancestor:
                return True
    return False
