"""A data set in memory: inputs, labels, how to normalise them, and who wrote what."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.errors import DataError
from headway.tree import stream


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test arrays of one classification problem."""

    name: str
    x: Tensor  # images uint8 or float32 [N, C, H, W]; tables float32 [N, F]
    y: Tensor  # int64 [N]
    x_test: Tensor
    y_test: Tensor
    classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel or feature, of x * scale
    std: tuple[float, ...]
    scale: float = 1 / 255
    group: Tensor | None = None  # int64 [N], the natural client of each training sample, 0..G-1
    group_test: Tensor | None = None  # the same clients; -1 where a client has no training sample
    note: str = ""

    @classmethod
    def of(
        cls, x: Any, y: Any, x_test: Any = None, y_test: Any = None, *, group: Any = None, group_test: Any = None,
        name: str = "arrays",
    ) -> Dataset:  # fmt: skip
        """A data set from arrays or tensors: x [N, F] or [N, C, H, W], y whole numbers [N]; without a test part,
        a fifth is held out. `group`: the natural client of each sample."""
        from headway.data.build import build

        parts = (x, y, x_test, y_test, group, group_test)
        return build(name, *(None if part is None else np.asarray(part) for part in parts))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        pairs = (("y", self.y, self.x), ("y_test", self.y_test, self.x_test))
        groups = (("group", self.group, self.x), ("group_test", self.group_test, self.x_test))
        for field, labels, x in pairs + groups:
            if labels is None:
                continue
            if labels.dtype != torch.int64 or labels.shape != x.shape[:1]:
                raise DataError(
                    f"{self.name}: {field} is {labels.dtype} {list(labels.shape)}, "
                    f"give int64 [{len(x)}], one for each sample"
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self.x.shape[1:])

    def hash(self) -> str:
        """SHA-256 of the arrays: names, shapes, types and bytes."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in self.tensors().items():
            digest.update(f"{name} {list(tensor.shape)} {tensor.dtype};".encode())
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """The arrays by name, in a fixed order; groups only where there are any."""
        named = {"x": self.x, "y": self.y, "x_test": self.x_test, "y_test": self.y_test}
        groups = {"group": self.group, "group_test": self.group_test}
        return named | {k: v for k, v in groups.items() if v is not None}

    def subset(self, train_size: int | None = None, test_size: int | None = None) -> Dataset:
        """A fixed random part, the same in every run; the normalisation stays that of the whole."""
        if train_size is None and test_size is None:
            return self
        rng = stream("subset")  # not by name: a renamed file gives the same part
        # Both permutations are always drawn, so that train_size does not change which test samples are kept.
        train = self._draw("train_size", train_size, len(self.y), rng)
        test = self._draw("test_size", test_size, len(self.y_test), rng)
        group, group_test = self.group, self.group_test
        if group is not None:
            group, group_test = renumber(group[train], None if group_test is None else group_test[test])
        kept = f"{len(train)} of {len(self.y)} training and {len(test)} of {len(self.y_test)} test samples"
        return replace(
            self,
            x=self.x[train],
            y=self.y[train],
            x_test=self.x_test[test],
            y_test=self.y_test[test],
            group=group,
            group_test=group_test,
            note="; ".join(filter(None, [self.note, kept])),
        )

    def _draw(self, field: str, size: int | None, available: int, rng: torch.Generator) -> Tensor:
        order = torch.randperm(available, generator=rng)
        if size is None:
            return torch.arange(available)
        if not 1 <= size <= available:
            raise DataError(f"{field} is {size}, but {self.name} has {available}: give 1 to {available}")
        return order[:size].sort().values


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
