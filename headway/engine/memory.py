"""The C library's memory: kept once it was asked for, instead of given back after every step and faulted in again."""

from __future__ import annotations

import ctypes
import gc
import os

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # names of malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to hold on to freed memory; forked workers inherit it. False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, another system
        return False
    large = any(mallopt(M_MMAP_THRESHOLD, size) for size in (2**30, 2**25))  # older versions refuse more than 32 MB
    return bool(large and mallopt(M_TRIM_THRESHOLD, 2**31 - 1) and mallopt(M_TOP_PAD, 2**26))


def give_back() -> None:
    """Hand freed memory back to the system, between pieces of work that have little in common."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library: it decides for itself
        return


def resident() -> int:
    """Bytes of this process that lie in memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


class GiveBackGrowth:
    """A tick between clients: gives freed memory back once the process has grown by so many bytes since it last did.

    Clients differ in size, so what one leaves behind seldom fits the next; yet giving back after each of a thousand
    small ones would cost more than they do.
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
