"""Large federations on disk: numbers as compressed columns inside the JSON, instead of one entry per client.

A column is {"dtype", "length", "zlib"}. A script reads it with
`np.frombuffer(zlib.decompress(base64.b64decode(column["zlib"])), column["dtype"])`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
FEW = 10_000  # clients; a file with as many or fewer has one entry per client
BLOCK = 100_000  # clients counted at a time: what counting them takes is freed again
LEVEL = 1  # of zlib: level 6 makes random positions 1 % smaller


def pack(values: npt.NDArray[Any]) -> dict[str, Any]:
    """A column of numbers, 0 or more, in the smallest type that holds them."""
    kind = np.min_scalar_type(int(values.max(initial=0))).newbyteorder("<")
    data = zlib.compress(np.ascontiguousarray(values, dtype=kind).data, LEVEL)
    return {"dtype": kind.str, "length": len(values), "zlib": base64.b64encode(data).decode()}


def unpack(column: Any) -> Ints:
    """The numbers of a column; ValueError, KeyError or TypeError if it is damaged."""
    kind, length = np.dtype(column["dtype"]), column["length"]
    if kind.kind != "u" or type(length) is not int or length < 0:
        raise ValueError("a column holds whole numbers, 0 or more")
    try:
        reader, size = zlib.decompressobj(), length * kind.itemsize
        data = reader.decompress(base64.b64decode(column["zlib"], validate=True), size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) != size or not reader.eof:
        raise ValueError(f"a column has not the {length} numbers that it names")
    return np.frombuffer(data, kind).astype(np.int64)


def pack_counts(index: Ints, offsets: Ints, labels: Ints, classes: int) -> dict[str, Any]:
    """Samples per client and class without the zeros, given the positions that each client holds in `labels`.

    `held`: how many classes a client holds; `class` and `samples`: each of them, client after client.
    """
    parts: list[tuple[Ints, Ints, Ints]] = []
    for first in range(0, len(offsets) - 1, BLOCK):
        ends = offsets[first : first + BLOCK + 1]
        cell = np.repeat(np.arange(len(ends) - 1) * classes, np.diff(ends)) + labels[index[ends[0] : ends[-1]]]
        cells, samples = np.unique(cell, return_counts=True)
        parts.append((np.bincount(cells // classes, minlength=len(ends) - 1), cells % classes, samples))
    held, label, samples = (pack(np.concatenate(column)) for column in zip(*parts, strict=True))
    return {"classes": classes, "held": held, "class": label, "samples": samples}


def unpack_counts(packed: Any) -> Ints:
    """Samples per client and class, [K, C]."""
    held, label = unpack(packed["held"]), unpack(packed["class"])
    counts = np.zeros((len(held), int(packed["classes"])), dtype=np.int64)
    if held.sum() != len(label) or label.max(initial=-1) >= counts.shape[1]:
        raise ValueError("counts")
    counts[np.repeat(np.arange(len(held)), held), label] = unpack(packed["samples"])
    return counts


def counts_in(found: Any) -> Ints:
    """Training samples per client and class, [K, C], of a run's partition.json with few clients or many."""
    clients = found["clients"]
    if isinstance(clients, dict):
        return unpack_counts(clients["counts"])
    return np.array([client["counts"] for client in clients], dtype=np.int64)


def checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
