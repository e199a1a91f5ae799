"""The FMA peak: the rate of fused multiply-adds in registers on all cores, an upper bound of any other computation."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from headway.models.native.build import NotBuilt, built

# Turns of about 1, 5 and 40 milliseconds, TOTAL steps for each length. Short turns fit between the time slices of other
# programs; in long ones the start of the threads is negligible. The kernel counts to 2^24 steps.
LENGTHS, TOTAL = (1 << 18, 1 << 20, 1 << 23), 1 << 25


@cache
def kernel() -> Any:
    found = built(Path(__file__).with_name("peak.cpp"))
    found.multiply_adds.argtypes, found.multiply_adds_per_step.argtypes = [ctypes.c_int64], []
    found.multiply_adds.restype = found.multiply_adds_per_step.restype = ctypes.c_int64
    return found


def why_missing() -> str | None:
    """Why this machine's FMA peak cannot be measured; None if it can."""
    try:
        kernel()
    except NotBuilt as error:
        return str(error)
    return None


def fma_gflops(threads: int, lengths: Sequence[int] = LENGTHS, total: int = TOTAL) -> float:
    """The best of several short turns, in each of which every thread computes multiply-adds."""
    count = kernel().multiply_adds  # ctypes releases Python's lock, so the threads run in parallel
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for steps in (length for length in lengths for _ in range(total // length)):
            start = time.perf_counter()
            made = sum(pool.map(count, [steps] * threads))
            best = max(best, gflops(made, time.perf_counter() - start))
    return best


def gflops(multiply_adds: int, seconds: float) -> float:
    """The rate in GFLOP/s; a multiply-add is two operations."""
    return 2 * multiply_adds / seconds / 1e9


def share(samples_per_second: float, flop_per_sample: float, peak: float | None) -> float | None:
    """The share of a peak in GFLOP/s; None if the peak is not known."""
    return None if peak is None else samples_per_second * flop_per_sample / 1e9 / peak
