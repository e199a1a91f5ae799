"""Angles, class means and norms: the small formulas that several diagnostics share, in float64."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.calibration import shared_head
from headway.heads import Head, TwinHead
from headway.models.net import Net


def cosines(a: Tensor, b: Tensor | None = None) -> Tensor:
    """cos(a_i, b_j), [m, n]; NaN where a vector is zero or unknown, as it has no direction."""
    a = unit(a)
    return a @ (a if b is None else unit(b)).T


def unit(a: Tensor) -> Tensor:
    """The rows' directions, [m, d]; NaN for a zero row."""
    a = a.double()
    return a / a.norm(dim=1, keepdim=True)


def class_sums(values: Tensor, y: Tensor, classes: int) -> Tensor:
    """Sums of the rows of each class, [C, d]; a product, whose order of summation is the same on every run."""
    return F.one_hot(y, classes).double().T @ values.double()


def class_means(h: Tensor, y: Tensor, classes: int) -> Tensor:
    """P_c = mean feature of class c, [C, d]; NaN for a class without samples."""
    n = torch.bincount(y, minlength=classes)[:, None]  # [C, 1]
    return class_sums(h, y, classes) / n


def pairs(matrix: Tensor) -> Tensor:
    """The known values above the diagonal, [at most m (m - 1) / 2]."""
    i, j = torch.triu_indices(len(matrix), len(matrix), offset=1, device=matrix.device)
    values = matrix[i, j]
    return values[values.isfinite()]


def known_mean(values: Tensor | Iterable[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    if not isinstance(values, Tensor):
        values = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
    values = values.double()[values.isfinite()]
    return float(values.mean()) if len(values) else None


def mean_over(total: Tensor, count: Tensor, where: Tensor) -> float | None:
    """sum of totals / sum of counts over the classes where `where` holds; None without any."""
    n = float(count[where].sum())
    return float(total[where].sum()) / n if n else None


def rows_of(head: Head) -> Tensor:
    """The weight vectors w_c as the logits use them, [C, d]: unit ones where the head normalises them."""
    w = head.weight.detach().double()
    return F.normalize(w, dim=1) if head.wnorm == "unit" and head.weights == "trainable" else w


def trained_head(net: Net) -> Head:
    """The classifier that local training moves: a client's own where the received one rests (FedTC)."""
    head = net.head.own if isinstance(net.head, TwinHead) else shared_head(net)
    assert isinstance(head, Head)
    return head


@torch.no_grad()
def embedded(head: Head, h: Tensor) -> Tensor:
    """What the weight matrix sees of the features, [n, d]."""
    return head.embed(h)
