"""Who takes part in a round: the first m of a random order of n, without the rest of that order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

FEW = 10_000  # up to as many are ordered whole
SHARE = 50  # and where more than one in this many is taken
MOST = 2**27  # torch takes 64 bits a draw instead of 32 for longer orders than about 2**27


def first_of_randperm(n: int, m: int, rng: torch.Generator) -> npt.NDArray[np.int64]:
    """torch.randperm(n, generator=rng)[:m] bit for bit, at a cost that grows with m alone.

    torch swaps place i with place i + (32 random bits mod n - i), for i = 0, 1, ...: the first m places are settled
    after m swaps. Only the places that were swapped are kept here.
    """
    if n <= FEW or m * SHARE > n or n > MOST:
        return torch.randperm(n, generator=rng)[:m].numpy()
    pairs = torch.empty(-(-m // 2), dtype=torch.int64).random_(-(2**63), None, generator=rng).numpy()
    bits = np.stack([pairs >> 32, pairs], axis=1).ravel()[:m] & 0xFFFFFFFF  # of a pair, the high half is drawn first
    swapped: dict[int, int] = {}
    first = np.empty(m, dtype=np.int64)
    for i, j in enumerate((np.arange(m) + bits % (n - np.arange(m))).tolist()):
        first[i], swapped[j] = swapped.get(j, j), swapped.get(i, i)
    return first
