"""Memory, page faults and processor time of a process and its descendants, from /proc."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headway.base.errors import ConfigError

PROC = Path("/proc")
HEADER = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ ([0-9a-f]+) \S+ (\d+) *(.*)$")
SHARED_ANONYMOUS = ("/dev/zero", "/memfd:", "/dev/shm", "/SYSV", "[")  # noqa: S108  names of mappings, not places


def check_proc() -> None:
    """Raise ConfigError if this system has no /proc."""
    if not (PROC / "self" / "smaps_rollup").exists():
        raise ConfigError("bench: it reads memory and page faults from /proc and this system has none; run it on Linux")


def family(pid: int) -> list[int]:
    """The process and its living descendants."""
    found = [pid]
    for parent in found:
        for task in (PROC / str(parent) / "task").glob("*/children"):
            with suppress(OSError):
                found += map(int, task.read_text().split())
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the process's name: state, parent, ..."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


@dataclass(frozen=True)
class Used:
    """Counters of a process with its descendants, and of the machine; the difference of two shows what was used."""

    faults: int  # page faults
    cpu: float  # seconds of processor time
    busy: float  # the same of all processes on the machine, and what a hypervisor took away
    at: float  # time of the reading

    def foreign_share(self, before: Used) -> float:
        """The share of the machine's cores that other programs used since `before`; it makes timings unreliable."""
        others = (self.busy - before.busy) - (self.cpu - before.cpu)
        return max(0.0, others / max(self.at - before.at, 1e-9) / (os.cpu_count() or 1))


def used(pid: int) -> Used:
    tick = os.sysconf("SC_CLK_TCK")
    faults = cpu = 0
    for member in family(pid):
        with suppress(OSError):
            fields = _stat(member)
            faults += int(fields[7]) + int(fields[9])  # minor, major
            cpu += int(fields[11]) + int(fields[12])  # user, system
    user, nice, system, _, _, irq, softirq, steal, *_ = (PROC / "stat").read_text().split("\n")[0].split()[1:]
    busy = sum(map(int, (user, nice, system, irq, softirq, steal)))
    return Used(faults, cpu / tick, busy / tick, time.perf_counter())


def own_bytes(pid: int) -> int:
    """Memory of a process and its descendants that is not mapped from files; shared memory counts once."""
    total = 0
    for member in family(pid):
        with suppress(OSError):
            rollup = (PROC / str(member) / "smaps_rollup").read_text()
            total += sum(_kilobytes(rollup, field) for field in ("Pss_Anon", "Pss_Shmem"))
    return 1024 * total


def file_bytes(pid: int) -> int:
    """Memory mapped from files, mostly torch's libraries, of a process and its descendants; each page counts once.

    The kernel's proportional figure would be smaller whenever an unrelated process uses the same library.
    """
    pages: dict[tuple[str, str], int] = {}
    for member in family(pid):
        with suppress(OSError):
            for place, size in _file_pages((PROC / str(member) / "smaps").read_text()).items():
                pages[place] = max(pages.get(place, 0), size)
    return 1024 * sum(pages.values())


def _kilobytes(text: str, field: str) -> int:
    found = re.search(rf"^{field}: +(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def _file_pages(smaps: str) -> dict[tuple[str, str], int]:
    """(file, offset) -> kilobytes of it in memory that were not written to."""
    pages: dict[tuple[str, str], int] = {}
    place: tuple[str, str] | None = None
    for line in smaps.splitlines():
        if header := HEADER.match(line):
            offset, inode, path = header.groups()
            place = (path, offset) if inode != "0" and not path.startswith(SHARED_ANONYMOUS) else None
        elif place and line.startswith("Rss:"):
            pages[place] = pages.get(place, 0) + int(line.split()[1])
        elif place and line.startswith("Anonymous:"):
            pages[place] -= int(line.split()[1])
    return pages


class PeakMemory:
    """The peak memory of a process and its descendants while `watching`, which slows them: not for timed turns."""

    def __init__(self, pid: int, every: float = 0.1):
        self.pid, self.every, self.own, self.files = pid, every, 0, 0

    @property
    def peak(self) -> int:
        return self.own + self.files

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def poll() -> None:
            while not over.wait(self.every):
                self.own = max(self.own, own_bytes(self.pid))

        thread = threading.Thread(target=poll, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.own = max(self.own, own_bytes(self.pid))
            self.files = max(self.files, file_bytes(self.pid))  # once is enough, as they stay mapped
