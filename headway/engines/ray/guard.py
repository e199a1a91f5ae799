"""A guard process for a private cluster: if the run is killed, it ends Ray's processes and deletes Ray's files.

It is started as a script and imports only the standard library. A run that ends normally sends it a message.
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

SWEEPS = 20  # a cluster that is ending may still start processes, so they are killed repeatedly
NORMAL_END = b"normal end"


class Guard:
    """The run's end of the pipe to the guard process. The kernel closes it when the run ends, for whatever reason."""

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

    def stop(self) -> None:
        """End the guard process; the cluster has been shut down."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.communicate(NORMAL_END)
            self._process = None


def watch() -> None:
    """The guard process: wait until the pipe is closed, then clean up unless the run ended normally."""
    folder = os.fsdecode(sys.stdin.buffer.readline().rstrip(b"\n"))
    if sys.stdin.buffer.read() == NORMAL_END:
        return
    for _ in range(SWEEPS):
        for pid in processes_of(folder):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> list[int]:
    """Ray's processes of the cluster in this folder: those with a file open there, as each has its log."""
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
