"""A data set in memory: inputs, labels, how to normalise them, and who wrote what."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headway.base.errors import DataError
from headway.base.lazy import Tensor, torch
from headway.base.tree import stream
from headway.data.checks import (
    clients,
    count_classes,
    holdout,
    inputs,
    labels,
    normaliser,
    renumber,
    same_clients,
    tensor,
)

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test arrays of one classification problem; `Dataset.of` makes one from arrays and checks them.

    Args:
        name: What messages and reports call it.
        x: Training inputs: images uint8 or float32 [N, C, H, W], or a table float32 [N, F].
        y: Training labels, int64 [N].
        x_test: Test inputs.
        y_test: Test labels.
        classes: Number of classes, C.
        class_names: Their names.
        mean: Mean of x * scale, for each channel or feature.
        std: Standard deviation of x * scale.
        scale: What inputs are multiplied by before they are normalised.
        group: The natural client of each training sample, int64 [N], 0 to G-1.
        group_test: The same for test samples; -1 where the client has no training sample.
        note: What a user should know of it.

    Raises:
        DataError: Labels or groups are not int64, or not one for each sample.

    >>> import torch
    >>> from headway import Dataset
    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> Dataset("tiny", x, y, x, y, 2, ("no", "yes"), mean=(0.0, 0.0), std=(1.0, 1.0), scale=1.0).shape
    (2,)
    """

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
        cls,
        x: ArrayLike,
        y: ArrayLike,
        x_test: ArrayLike | None = None,
        y_test: ArrayLike | None = None,
        *,
        group: ArrayLike | None = None,
        group_test: ArrayLike | None = None,
        name: str = "arrays",
    ) -> Dataset:
        """A data set from arrays or tensors, checked.

        Args:
            x: Training inputs: a table [N, F], or images [N, H, W], [N, C, H, W] or [N, H, W, C]. Images of whole
                numbers from 0 to 255 are kept as bytes, everything else as float32.
            y: Training labels, whole numbers from 0 to C-1, [N].
            x_test: Test inputs of the same shape a sample. Without a test part a fixed fifth of each class (with
                `group`: of each client) is held out.
            y_test: Test labels.
            group: The natural client of each training sample, a number or a name, [N]; for `partition="natural"`.
            group_test: The natural client of each test sample.
            name: What messages and reports call the data set.

        Returns:
            The data set, with the mean and standard deviation of its training inputs.

        Raises:
            DataError: The arrays do not fit together, hold NaN or infinity, or are nothing to learn from; the
                sentence names the array, what was found and what to give instead.

        >>> import numpy as np
        >>> from headway import Dataset
        >>> data = Dataset.of(np.eye(10).repeat(5, axis=0), np.arange(50) % 2)
        >>> len(data.y), len(data.y_test), data.classes, data.shape
        (40, 10, 2, (10,))
        """
        parts = (x, y, x_test, y_test, group, group_test)
        return build(name, *(None if part is None else np.asarray(part) for part in parts))  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        pairs = (("y", self.y, self.x), ("y_test", self.y_test, self.x_test))
        groups = (("group", self.group, self.x), ("group_test", self.group_test, self.x_test))
        for field, given, x in pairs + groups:
            if given is None:
                continue
            if given.dtype != torch.int64 or given.shape != x.shape[:1]:
                raise DataError(
                    f"{self.name}: {field} is {given.dtype} {list(given.shape)}, "
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
        for name, values in self.tensors().items():
            digest.update(f"{name} {list(values.shape)} {values.dtype};".encode())
            digest.update(np.ascontiguousarray(values.cpu().numpy()).reshape(-1).view(np.uint8).data)
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


def build(
    name: str,
    x: Array,
    y: Array,
    x_test: Array | None = None,
    y_test: Array | None = None,
    group: Array | None = None,
    group_test: Array | None = None,
    class_names: Sequence[str] | None = None,
    feature_names: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> Dataset:
    """Check the arrays of a user's own data, put them together, hold out 20 % if there is no test part."""
    notes = [*notes]
    if (x_test is None) != (y_test is None):
        has, lacks = ("y_test", "x_test") if x_test is None else ("x_test", "y_test")
        raise DataError(f"{name} has {has} but no {lacks}: give both, or neither to hold out 20 %")
    if group_test is not None and group is None:
        raise DataError(f"{name} has group_test but no group: give the clients of the training samples too")
    x, x_test, scale = inputs(name, x, x_test, notes, feature_names)
    y = labels(f"{name}: y", y, len(x))
    group = None if group is None else clients(f"{name}: group", group, len(x))
    if x_test is None or y_test is None:
        if group_test is not None:
            raise DataError(f"{name} has group_test but no x_test: give the test samples too, or drop it")
        train, test = holdout(name, y, group)
        of = "" if group is None else " of every client"
        notes.append(f"{name} has no test part: 20 %{of} held out, the same ones every time")
        x, x_test, y, y_test = x[train], x[test], y[train], y[test]
        group, group_test = (None, None) if group is None else (group[train], group[test])
    else:
        y_test = labels(f"{name}: y_test", y_test, len(x_test))
        group_test = None if group_test is None else clients(f"{name}: group_test", group_test, len(x_test))
    classes = count_classes(name, y, y_test, class_names)
    mean, std = normaliser(name, x, scale)
    g, g_test = same_clients(name, group, group_test)
    return Dataset(
        name=name,
        x=tensor(x),
        y=tensor(y),
        x_test=tensor(x_test),
        y_test=tensor(y_test),
        classes=classes,
        class_names=tuple(class_names or (str(c) for c in range(classes))),
        mean=mean,
        std=std,
        scale=scale,
        group=g,
        group_test=g_test,
        note="; ".join(notes),
    )
