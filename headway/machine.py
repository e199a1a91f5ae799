"""What this process may use of the machine: its cores and memory, or the share a container or a job has of them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # Linux's control groups, by which containers and job schedulers set limits
OWN = Path("/proc/self/cgroup")


def cores() -> int:
    """Processors this process may use; a limit of one and a half is two."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    there = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(there, core_limit()))


def memory() -> int:
    """Bytes this process may use."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        there = 8 * 2**30
    return min([there, *memory_limits()])


@cache
def core_limit() -> int:
    """Asked every round, so read once."""
    return math.ceil(min(core_limits(), default=sys.maxsize))


def core_limits() -> Iterator[float]:
    """Time on processors that each group allows, in processors."""
    for folder in groups("cpu"):
        quota, _, period = read(folder / "cpu.max").partition(" ")  # version 2: `150000 100000`, or `max 100000`
        if not period:
            quota, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):  # max and -1: no limit
            yield int(quota) / int(period)


def memory_limits() -> Iterator[int]:
    for folder in groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read(folder / name)
            if text.isdigit() and int(text):
                yield int(text)


def groups(controller: str) -> Iterator[Path]:
    """This process's group and those it lies in, of both versions of control groups."""
    for line in read(OWN).splitlines():  # `0::/a/b`, or `4:cpu,cpuacct:/a/b`
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        root = GROUPS / names if names else GROUPS
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)


def read(path: Path) -> str:
    """A small file's text, empty where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
