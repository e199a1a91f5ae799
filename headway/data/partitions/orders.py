"""A random order of each client's samples, drawn for many clients at a time.

The order of client k is torch.randperm(n_k, generator=stream(seed, "split", k)). A generator costs 15 us, most of it
for 624 words of state of which a short list needs a few. `_bits` computes those few for a block of clients.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headway.base.lazy import torch
from headway.base.tree import seed_of, stream
from headway.data.partitions.packed import FEW

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]
SHORT = 200  # samples; word i of the generator depends on the first state alone for i below 624 - 397 = 227
BLOCK = 8192  # clients at a time


def reordered(index: Ints, offsets: Ints, seed: int) -> Ints:
    """The positions, each client's in its random order."""
    sizes, out = np.diff(offsets), index.copy()
    short = (sizes <= SHORT) & (len(sizes) > FEW)
    for k in np.flatnonzero(~short).tolist():
        order = torch.randperm(int(sizes[k]), generator=stream(seed, "split", k)).numpy()
        out[offsets[k] : offsets[k + 1]] = index[offsets[k] + order]
    many = np.flatnonzero(short & (sizes > 1))
    for first in range(0, len(many), BLOCK):
        some = many[first : first + BLOCK]
        seeds = np.array([seed_of(seed, "split", k) for k in some.tolist()]).astype(np.uint32)
        order = _orders(seeds, sizes[some])  # [clients, most samples]
        real = np.arange(order.shape[1]) < sizes[some, None]
        start = offsets[some, None]
        out[(start + np.arange(order.shape[1]))[real]] = index[(start + order)[real]]
    return out


def _orders(seeds: Words, sizes: Ints) -> Ints:
    """The first sizes[k] numbers of row k are torch.randperm(sizes[k]): swap place i with i + (bits mod n - i)."""
    most, rows = int(sizes.max()), np.arange(len(sizes))
    order = np.tile(np.arange(most), (len(sizes), 1))
    for i, bits in enumerate(_bits(seeds, most - 1)):
        j = i + bits % np.maximum(sizes - i, 1)  # a shorter list is done: its place i stays
        order[rows, i], order[rows, j] = order[rows, j], order[rows, i]
    return order


def _bits(seeds: Words, count: int) -> Words:
    """The first `count` words of torch's generator (MT19937) for each seed, [count, seeds]."""
    state = np.empty((397 + count, len(seeds)), dtype=np.uint32)
    state[0] = seeds
    for j in range(1, len(state)):
        state[j] = np.uint32(1812433253) * (state[j - 1] ^ (state[j - 1] >> np.uint32(30))) + np.uint32(j)
    low = state[1 : count + 1]
    y = (state[:count] & np.uint32(0x80000000)) | (low & np.uint32(0x7FFFFFFF))
    y = state[397:] ^ (y >> np.uint32(1)) ^ ((low & np.uint32(1)) * np.uint32(0x9908B0DF))
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    tempered: Words = y ^ (y >> np.uint32(18))
    return tempered
