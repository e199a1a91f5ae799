"""Freed memory of this process: kept by the C library for the next step, or given back to the operating system.

By default glibc gives large blocks back after every step, and each new one costs page faults again.
"""

from __future__ import annotations

import ctypes
import gc
import os

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # names of malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory; forked workers inherit the setting. Returns False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, another system
        return False
    large = any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # older versions refuse more than 32 MB
    return bool(large and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(M_TOP_PAD, 2**26))


def give_back() -> None:
    """Give freed memory back to the operating system; for use between computations of different sizes."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library, which has no such call
        return


def resident() -> int:
    """Resident memory of this process in bytes; 0 where /proc does not exist."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


class GiveBackGrowth:
    """A tick between clients that gives freed memory back when the process has grown by more than `most` bytes.

    Clients differ in size, so memory freed by one seldom fits the next. Giving it back after every client would take
    longer than the work on a small client.
    """

    def __init__(self, most: int = 2**28) -> None:
        self.most = most
        self.low = resident()

    def __call__(self, done: int, total: int) -> None:
        now = resident()
        if now > self.low + self.most:
            give_back()
            self.low = resident()
        self.low = min(self.low, now)
