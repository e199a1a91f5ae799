"""A small process beside a private cluster: if the run is killed outright, it ends what Ray leaves behind.

It is started as a script and knows nothing but the standard library. A run that ends in order tells it so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

SWEEPS = 20  # a dying cluster still starts processes for a moment
ALL_WELL = b"all is well"


class Guard:
    """The run's end of the pipe. The kernel closes it whatever becomes of the run."""

    def __init__(self, folder: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not Path("/proc/self/fd").exists():
            return
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = subprocess.Popen(  # noqa: S603  this interpreter, this file
            [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, env=clean, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(os.fsencode(folder) + b"\n")
        self._process.stdin.flush()

    def dismiss(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.communicate(ALL_WELL)
            self._process = None


def watch() -> None:
    folder = os.fsdecode(sys.stdin.buffer.readline().rstrip(b"\n"))
    if sys.stdin.buffer.read() == ALL_WELL:
        return
    for _ in range(SWEEPS):
        for pid in of_cluster(folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)


def of_cluster(folder: str) -> list[int]:
    """Ray's processes that hold files of this cluster's own folder open, as each does with its log."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (path / "cmdline").read_bytes()
            if line.startswith(b"ray::") or b"/ray/" in line:
                held = [os.readlink(fd) for fd in (path / "fd").iterdir()]
                found += [int(path.name)] if any(name.startswith(f"{folder}/") for name in held) else []
    return found


if __name__ == "__main__":
    watch()
