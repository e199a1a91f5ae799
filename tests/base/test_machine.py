"""What a process may use: the machine's, or the share a container has of it."""

from __future__ import annotations

import os

import pytest

from headway.base import machine

GIB = 2**30


@pytest.fixture
def limits(tmp_path, monkeypatch):
    """A machine of 8 cores and 64 GiB whose control groups are these files."""

    def of(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    monkeypatch.setattr(machine, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}.get)
    machine.core_limit.cache_clear()
    yield of
    machine.core_limit.cache_clear()


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("", {}, 8, 64 * GIB),  # no control groups at all
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, 8, 64 * GIB),
        ("0::/", {"cpu.max": "150000 100000", "memory.max": str(4 * GIB)}, 2, 4 * GIB),
        ("0::/", {"cpu.max": "50000 100000"}, 1, 64 * GIB),
        ("0::/", {"cpu.max": "3200000 100000", "memory.max": str(900 * GIB)}, 8, 64 * GIB),  # more than there is
        ("0::/job/step", {"job/cpu.max": "300000 100000", "job/step/memory.max": str(2 * GIB), "memory.max": str(GIB)},
         3, GIB),  # the narrowest of all it lies in
        ("3:cpu,cpuacct:/box\n5:memory:/box\n1:cpuset:/other",
         {"cpu,cpuacct/box/cpu.cfs_quota_us": "200000", "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
          "memory/box/memory.limit_in_bytes": str(3 * GIB), "cpuset/other/memory.max": "1"}, 2, 3 * GIB),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, 64 * GIB),
    ],
)  # fmt: skip
def test_the_narrowest_limit_counts(limits, own, files, cores, memory) -> None:
    limits(own, files)
    assert (machine.cores(), machine.memory()) == (cores, memory)


def test_this_machine_has_something() -> None:
    assert 1 <= machine.cores() <= (os.cpu_count() or 1)
    assert machine.memory() > 2**20
