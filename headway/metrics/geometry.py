"""Angles, class means and norms: formulas that several diagnostics use, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.models.heads import Head
from headway.models.net import Net


def cosines(a: Tensor, b: Tensor | None = None) -> Tensor:
    """cos(a_i, b_j), [m, n]; NaN where a vector is zero or NaN."""
    a = unit(a)
    return a @ (a if b is None else unit(b)).T


def unit(a: Tensor) -> Tensor:
    """The rows divided by their norms, [m, d]; NaN for a zero row."""
    a = a.double()
    return a / a.norm(dim=1, keepdim=True)


def class_sums(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sums of the rows of each class, [C, d]; by a matrix product, so that every run sums in the same order."""
    return F.one_hot(y, classes).double().T @ values.double()


def class_means(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """P_c = mean feature of class c, [C, d]; NaN for a class without samples."""
    n = torch.bincount(y, minlength=classes)[:, None]  # [C, 1]
    return class_sums(h, y, classes) / n


def pairs(matrix: Tensor) -> Tensor:
    """The finite values above the diagonal, [at most m (m - 1) / 2]."""
    i, j = torch.triu_indices(len(matrix), len(matrix), offset=1, device=matrix.device)
    values = matrix[i, j]
    return values[values.isfinite()]


def known_mean(values: Tensor | Iterable[float | None]) -> float | None:
    """The mean of the values that are finite and not None; None if there are none."""
    if not isinstance(values, Tensor):
        values = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
    values = values.double()[values.isfinite()]
    return float(values.mean()) if len(values) else None


def mean_of_pairs(matrix: Tensor | npt.NDArray[Any]) -> float | None:
    """The mean of the finite values above the diagonal of a symmetric matrix; None if there are none."""
    return known_mean(pairs(torch.as_tensor(matrix)))


def finite_or_none(value: Tensor | float) -> float | None:
    """A float, or None for NaN and infinity."""
    value = float(value)
    return value if math.isfinite(value) else None


def pair_rows(key: str, names: Sequence[str], matrix: Tensor, value: str) -> list[dict[str, Any]]:
    """A symmetric matrix over classes or clients as a table with one row per pair."""
    flat = matrix.double().cpu().tolist()
    return [
        {key: names[i], f"other_{key}": names[j], value: finite_or_none(flat[i][j])}
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]


def mean_over(total: Tensor, count: Tensor, where: Tensor) -> float | None:
    """Sum of totals / sum of counts over the classes in `where`; None if the counts are zero."""
    n = float(count[where].sum())
    return float(total[where].sum()) / n if n else None


def rows_of(head: Head) -> Tensor:
    """The weight vectors w_c as the logits use them, [C, d]: normalised if the head normalises them."""
    w = head.weight.detach().double()
    return F.normalize(w, dim=1) if head.wnorm == "unit" and head.weights == "trainable" else w


def trained_head(net: Net) -> Head:
    """The classifier that local training moves: the shared one, or the client's own."""
    head: Head = net.head.trained  # type: ignore[assignment]
    return head


@torch.no_grad()
def embedded(head: Head, h: Tensor) -> Tensor:
    """The features as the weight matrix receives them, [n, d]."""
    return head.embed(h)
