"""Checks of raw arrays before they become a data set: convert what is lossless, refuse the rest in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.base.errors import DataError
from headway.base.lazy import Tensor, torch
from headway.base.tree import stream

Array = NDArray[Any]
CHANNELS = (1, 3, 4)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")


def tensor(a: Array) -> Tensor:
    return torch.from_numpy(np.require(a, requirements=["C", "W"]))


def inputs(
    name: str, x: Array, x_test: Array | None, notes: list[str], features: Sequence[str] | None = None
) -> tuple[Array, Array | None, float]:
    """Images as [N, C, H, W] (uint8 where they fit), tables as float32 [N, F]."""
    parts = {"x": x} if x_test is None else {"x": x, "x_test": x_test}
    laid = {field: layout(f"{name}: {field}", a, notes) for field, a in parts.items()}
    if x_test is not None and laid["x"].shape[1:] != laid["x_test"].shape[1:]:
        raise DataError(
            f"{name}: one sample of x is {list(laid['x'].shape[1:])} but one of x_test is "
            f"{list(laid['x_test'].shape[1:])}: bring both to the same shape"
        )
    whole = all(a.dtype.kind in "biu" for a in laid.values())
    small = whole and laid["x"].ndim == 4 and all(a.min() >= 0 and a.max() <= 255 for a in laid.values())
    kind, scale = (np.uint8, 1 / 255) if small else (np.float32, 1.0)
    with np.errstate(over="ignore"):  # what overflows float32 is found by `finite`
        done = {field: np.ascontiguousarray(a, dtype=kind) for field, a in laid.items()}
    for field, a in done.items():
        finite(f"{name}: {field}", a, features)
    return done["x"], done.get("x_test"), scale


def layout(where: str, x: Array, notes: list[str]) -> Array:
    if x.dtype.kind not in "biuf":
        raise DataError(f"{where} holds {x.dtype}: give numbers")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{where} has shape {list(x.shape)}: give [N, F] for a table, [N, H, W] or [N, C, H, W] for images"
        )
    if x.size == 0:
        raise DataError(f"{where} is empty (shape {list(x.shape)}): give at least one sample")
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in CHANNELS:
        if x.shape[3] in CHANNELS and (note := f"shape {list(x.shape)} read as [N, C, H, W]") not in notes:
            notes.append(note)
        return x
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        return x.transpose(0, 3, 1, 2)
    if x.ndim == 4:
        raise DataError(f"{where} has shape {list(x.shape)}: images need 1, 3 or 4 channels on axis 1 or 3")
    return x


def finite(where: str, x: Array, features: Sequence[str] | None = None) -> None:
    """Refuse NaN and infinity (also what float32 cannot hold)."""
    if x.dtype.kind != "f":
        return
    good = np.isfinite(x)
    if good.all():
        return
    first = [int(i) for i in np.unravel_index(int(np.argmin(good)), x.shape)]
    column = f" (column {features[first[1]]!r})" if features else ""
    raise DataError(
        f"{where} has {int((~good).sum())} values that are NaN or infinite as float32, the first at "
        f"{first}{column}: fill or remove them before loading"
    )


def labels(where: str, y: Array, n: int) -> Array:
    """Whole numbers >= 0 as int64 [n], from any type that holds them exactly."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and len(y) == n and y.dtype.kind in "biuf" and is_one_hot(y):
        raise DataError(f"{where} holds one-hot rows {list(y.shape)}: pass y.argmax(1)")
    if y.shape != (n,):
        raise DataError(f"{where} has shape {list(y.shape)} but x has {n} samples: give one label for each")
    if y.dtype.kind not in "biuf":
        raise DataError(f"{where} holds {y.dtype}: give integers, as in np.unique(y, return_inverse=True)[1]")
    with np.errstate(invalid="ignore"):
        whole = np.floor(y) == y if y.dtype.kind == "f" else np.ones(n, dtype=bool)
        good = whole & (y >= 0) & (y < 2**53)
    if not good.all():
        first = int(np.argmin(good))
        raise DataError(f"{where} has label {y[first]} at index {first}: labels are whole numbers 0..C-1")
    return y.astype(np.int64)


def is_one_hot(y: Array) -> bool:
    return bool(((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def clients(where: str, group: Array, n: int) -> Array:
    if group.shape != (n,) or group.dtype.kind not in "biuU":
        raise DataError(
            f"{where} is {group.dtype} {list(group.shape)}: give one client number or name for each of {n} samples"
        )
    if len(lost := nameless(group)):
        raise DataError(
            f"{where} names no client for {len(lost)} of {n} samples, the first at index {lost[0]} "
            f"({str(group[lost[0]])!r}): fill them, or leave the groups out"
        )
    return group


def nameless(group: Array) -> Array:
    """Where a client's name is missing: all such samples would become one more client."""
    if group.dtype.kind != "U":
        return np.empty(0, dtype=np.int64)
    names, codes = np.unique(group, return_inverse=True)
    lost = [i for i, name in enumerate(names) if str(name).strip().lower() in MISSING]
    return np.flatnonzero(np.isin(codes.reshape(-1), lost))


def same_clients(name: str, group: Array | None, group_test: Array | None) -> tuple[Tensor | None, Tensor | None]:
    """Client names or numbers of both parts as 0..G-1 of the training part."""
    if group is None:
        return None, None
    if group_test is None:
        return tensor(np.unique(group, return_inverse=True)[1].astype(np.int64)), None
    if (group.dtype.kind == "U") != (group_test.dtype.kind == "U"):
        raise DataError(f"{name}: group is {group.dtype} but group_test {group_test.dtype}: use one kind of name")
    codes = np.unique(np.concatenate([group, group_test]), return_inverse=True)[1].astype(np.int64)
    return renumber(tensor(codes[: len(group)]), tensor(codes[len(group) :]))


def count_classes(name: str, y: Array, y_test: Array, class_names: Sequence[str] | None) -> int:
    """C, when both parts hold what a classifier can learn."""
    found = np.unique(y)
    if len(found) < 2:
        raise DataError(f"{name} has only class {found[0]} in its training part: give at least two classes")
    if len(unseen := np.setdiff1d(y_test, found)):
        names = ", ".join(class_names[c] if class_names else str(c) for c in unseen[:5].tolist())
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        raise DataError(
            f"{name} has class {names}{more} only in its test part: add training samples or remove it from "
            "the test part"
        )
    if class_names is not None:
        return len(class_names)
    classes = int(found[-1]) + 1
    if classes > 10 * len(found):
        raise DataError(
            f"{name} has {len(found)} different labels but the largest is {found[-1]}: "
            "number them 0..C-1, as in np.unique(y, return_inverse=True)[1]"
        )
    return classes


def normaliser(name: str, x: Array, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of the training part; a constant column gets std 1, a constant channel is refused."""
    mean, std, constant = moments(x, scale)
    if constant and x.ndim == 4:
        raise DataError(
            f"{name}: channel {constant[0]} of all {len(x)} training images is one constant value "
            f"(std 0, first at [0, {constant[0]}, 0, 0]): remove the channel"
        )
    return mean, tuple(s or 1.0 for s in std)


def holdout(name: str, y: Array, group: Array | None = None, fraction: float = 0.2) -> tuple[Array, Array]:
    """Indices of a fixed train and test part, in order; each class (or, where there are groups, each group) with two
    samples or more is in both, and no class is in the test part alone."""
    by = y if group is None else np.unique(group, return_inverse=True)[1].reshape(-1)
    train, test = split_each(by, fraction, stream("holdout"))  # by content alone: a file may be renamed
    alone = np.isin(y[test], np.setdiff1d(y[test], y[train]))
    train, test = np.sort(np.concatenate([train, test[alone]])), test[~alone]
    if not len(test):
        raise DataError(f"{name} has no test part and {why_not(y, by, group is not None)}")
    return train, test


def why_not(y: Array, by: Array, grouped: bool) -> str:
    """Why nothing could be held out, and what to do about it."""
    sizes = np.bincount(by)
    if grouped and sizes.max() < 2:
        return (
            f"none of its {len(sizes)} groups has two samples to hold one out of: "
            "give a test part, or leave the groups out"
        )
    if grouped and np.bincount(y).max() > 1:
        return "what its groups could hold out is all there is of a class: add samples, or give a test part"
    return "no class with two samples to hold one out: add samples"


def split_each(y: Array, fraction: float, rng: torch.Generator) -> tuple[Array, Array]:
    """Hold out a fraction of every class, at least one sample and never the last."""
    held = np.zeros(len(y), dtype=bool)
    order = np.argsort(y, kind="stable")
    starts = np.flatnonzero(np.diff(y[order], prepend=-1))
    for members in np.split(order, starts[1:]):
        n = len(members)
        take = min(max(round(fraction * n), 1), n - 1)
        held[members[torch.randperm(n, generator=rng).numpy()[:take]]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def renumber(group: Tensor, group_test: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Clients as 0..G-1 in the order they had; -1 for test samples of a client not in training."""
    known, new = torch.unique(group, return_inverse=True)
    if group_test is None:
        return new, None
    place = torch.searchsorted(known, group_test).clamp(max=len(known) - 1)
    return new, torch.where(known[place] == group_test, place, torch.full_like(place, -1))


def moments(x: NDArray[Any], scale: float) -> tuple[tuple[float, ...], tuple[float, ...], list[int]]:
    """Mean and standard deviation of x * scale per channel or feature, and which of them never change.

    Blocks of float64 on one thread: the numbers do not depend on the machine's cores.
    """
    flat = x.reshape(len(x), x.shape[1], -1)
    step = max(1, (1 << 22) // max(1, flat[0].size))
    blocks = [flat[i : i + step] for i in range(0, len(flat), step)]
    count = len(flat) * flat.shape[2]
    mean = sum(b.sum(axis=(0, 2), dtype=np.float64) for b in blocks) / count
    square = sum(np.square(b - mean[:, None], dtype=np.float64).sum(axis=(0, 2)) for b in blocks)
    low = np.min([b.min(axis=(0, 2)) for b in blocks], axis=0)
    high = np.max([b.max(axis=(0, 2)) for b in blocks], axis=0)
    std = np.where(low == high, 0.0, np.sqrt(square / count))
    constant = np.flatnonzero(low == high).tolist()
    return tuple((mean * scale).tolist()), tuple((std * scale).tolist()), constant
