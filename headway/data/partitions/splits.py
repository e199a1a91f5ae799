"""Local splits: what each client trains on and what it is tested on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headway.base.errors import PartitionError, nearest
from headway.base.lazy import torch
from headway.base.tree import stream
from headway.data.partitions.draws import NO_CLIENT, class_lists
from headway.data.partitions.orders import reordered
from headway.data.partitions.partition import Lists, Partition, checked_labels, lists_of

Ints = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]
HOW = ("none", "shard")


@dataclass(frozen=True, eq=False)
class Split:
    """Training and local test positions per client; `test_from` says into which arrays `test` points."""

    train: Lists
    test: Lists
    test_from: Literal["train", "test"]


def split(
    p: Partition,
    how: str,
    labels: Labels,
    test_labels: Labels | None,
    seed: int,
    *,
    group: Labels | None = None,
    group_test: Labels | None = None,
) -> Split:
    """none: no local tests; shard: the test set, dealt like the training labels; 0.3: that share held out."""
    word = how.strip().lower() if isinstance(how, str) else repr(how)
    whole = Lists(p.index, p.offsets)
    if word == "none":
        return Split(whole, Lists(np.empty(0, dtype=np.int64), np.zeros_like(p.offsets)), "train")
    if word == "shard":
        return Split(whole, _dealt(p, labels, test_labels, seed, group, group_test), "test")
    share = _share(word)
    sizes = p.sizes()
    held_out = (share * sizes).astype(np.int64)  # the share is below 1: one sample at least stays to train on
    mixed = reordered(p.index, p.offsets, seed)
    tests = np.arange(len(mixed)) - np.repeat(p.offsets[:-1], sizes) < np.repeat(held_out, sizes)
    test, train = Lists(mixed[tests], _offsets(held_out)), Lists(mixed[~tests], _offsets(sizes - held_out))
    return Split(train, test, "train")


def _share(word: str) -> float:
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf)", word):
        raise PartitionError(f"local_test={word[:40]}: it is unknown; {nearest(word, HOW)} or a share such as 0.3")
    share = float(word)
    if not 0 < share < 1:
        raise PartitionError(
            f"local_test={word[:40]}: it must be a share above 0 and below 1, such as 0.3, or 'none' or 'shard'"
        )
    return share


def _dealt(
    p: Partition,
    labels: Labels,
    test_labels: Labels | None,
    seed: int,
    group: Labels | None,
    group_test: Labels | None,
) -> Lists:
    """The official test set over the clients: by group where there are groups, else by label."""
    if test_labels is None or len(test_labels) == 0:
        raise PartitionError("local_test=shard: the data has no test set; use a share such as 0.3 or 'none'")
    if p.spec == "natural" and group_test is not None:
        if group is None:
            raise PartitionError(
                "local_test=shard: the test samples have groups but the training samples have none; "
                "give both or a share such as 0.3"
            )
        return _by_group(p, np.asarray(group), np.asarray(group_test), len(test_labels))
    return _by_label(p, checked_labels(labels, p.classes), checked_labels(test_labels, p.classes), seed)


def _by_group(p: Partition, group: Labels, group_test: Labels, tests: int) -> Lists:
    if group_test.shape != (tests,):
        raise PartitionError(
            f"local_test=shard: the test groups have shape {group_test.shape} for {tests} test samples; "
            "give one per sample"
        )
    if (group.dtype.kind in "US") != (group_test.dtype.kind in "US"):
        raise PartitionError(
            f"local_test=shard: the training groups are {group.dtype} but the test groups "
            f"{group_test.dtype}; name them alike"
        )
    names = group[p.index[p.offsets[:-1]]]  # a natural client is never empty: its first sample names it
    order = np.argsort(names, kind="stable")
    place = np.minimum(np.searchsorted(names[order], group_test), len(names) - 1)
    owner = np.where(names[order][place] == group_test, order[place], NO_CLIENT)
    return lists_of(np.arange(tests, dtype=np.int64), owner, len(p))


def _by_label(p: Partition, labels: Ints, test_labels: Ints, seed: int) -> Lists:
    """Each class's test samples in proportion to the clients' training samples of that class."""
    pool, owner = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    due = np.zeros(len(p))  # test samples a client should have more, by the exact shares so far
    client = np.repeat(np.arange(len(p)), p.sizes())
    samples = class_lists(labels[p.index], p.classes)
    for c, (mine, positions) in enumerate(zip(samples, class_lists(test_labels, p.classes), strict=True)):
        if len(positions) == 0 or len(mine) == 0:
            continue
        who, held = np.unique(client[mine], return_counts=True)  # clients without the class get none of it
        exact = len(positions) * held / held.sum()
        given = _largest_remainder(held, len(positions), due[who] + exact)
        due[who] += exact - given
        shuffle = torch.randperm(len(positions), generator=stream(seed, "split", "test", c)).numpy()
        pool.append(positions[shuffle])
        owner.append(np.repeat(who, given))
    return lists_of(np.concatenate(pool), np.concatenate(owner), len(p))


def _largest_remainder(held: Ints, total: int, due: npt.NDArray[np.float64]) -> Ints:
    """`total` in proportion to `held`, in whole numbers; equal remainders go to whoever is due the most."""
    mine, rest = np.divmod(held * total, held.sum())
    left = total - int(mine.sum())
    more, alike = _least(-rest, left)
    # Rounded, so that float noise does not decide between clients that are due the same.
    by_due, same = _least(-np.round(due[alike], 6), left - len(more))
    mine[more] += 1
    mine[alike[by_due]] += 1
    mine[alike[same[: left - len(more) - len(by_due)]]] += 1
    return mine


def _least(values: npt.NDArray[Any], count: int) -> tuple[Ints, Ints]:
    """Places of values below the one in place `count` of their order, and of those equal to it; no sort is needed."""
    if count == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    edge = np.partition(values, count - 1)[count - 1]
    return np.flatnonzero(values < edge), np.flatnonzero(values == edge)


def _offsets(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)])
