"""Cores and memory that this process may use: the machine's, or fewer if a container or a job has limits."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # Linux's control groups: containers and job schedulers set limits there
OWN = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use; a limit of 1.5 counts as 2."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    available = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(available, core_limit()))


def memory() -> int:
    """Bytes of memory that this process may use."""
    try:
        available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        available = 8 * 2**30
    return min([available, *memory_limits()])


@cache
def core_limit() -> int:
    """The smallest limit on cores; read once, as it is needed in every round."""
    return math.ceil(min(core_limits(), default=sys.maxsize))


def core_limits() -> Iterator[float]:
    """The limit of each group: processor time divided by real time, that is, a number of cores."""
    for folder in groups("cpu"):
        quota, _, period = read(folder / "cpu.max").partition(" ")  # version 2: `150000 100000`, or `max 100000`
        if not period:
            quota, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):  # max and -1: no limit
            yield int(quota) / int(period)


def memory_limits() -> Iterator[int]:
    """The limit of each group in bytes."""
    for folder in groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read(folder / name)
            if text.isdigit() and int(text):
                yield int(text)


def groups(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of the groups that contain it, for both versions of control groups."""
    for line in read(OWN).splitlines():  # `0::/a/b`, or `4:cpu,cpuacct:/a/b`
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        root = GROUPS / names if names else GROUPS
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)


def read(path: Path) -> str:
    """The text of a small file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
