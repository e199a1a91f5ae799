"""Prototype consistency: agreement of the class means and classifiers of two clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.metrics.geometry import cosines, known_mean, pairs
from headway.metrics.local_statistics import LocalStatistics


def class_consistency(prototypes: Sequence[Tensor]) -> list[float | None]:
    """The mean cosine over pairs of clients, for each class; None for a class that fewer than two clients have.

    `prototypes` has one tensor [C, d] per client, with NaN rows for classes that the client lacks.
    """
    stacked = torch.stack(list(prototypes), 1)  # [C, K, d]
    return [known_mean(pairs(cosines(P))) for P in stacked]


def classifier_cosines(rows: Sequence[Tensor]) -> Tensor:
    """cos between the flattened classifiers of two clients, [K, K]."""
    return cosines(torch.stack([r.flatten() for r in rows]))


def consistency_figures(clients: Sequence[LocalStatistics]) -> dict[str, float | None]:
    """Mean consistency of prototypes and mean cosine between classifiers, over pairs of clients."""
    found = {"consistency": known_mean(class_consistency([s.raw for s in clients]))}
    if not all(same_space(s) for s in clients):
        found["consistency_seen"] = known_mean(class_consistency([s.seen for s in clients]))
    return found | {"classifier_cosine": known_mean(pairs(classifier_cosines([s.rows for s in clients])))}


def same_space(s: LocalStatistics) -> bool:
    """Whether the weight matrix receives the features unchanged."""
    return s.raw.shape == s.seen.shape and torch.equal(s.raw.nan_to_num(), s.seen.nan_to_num())
