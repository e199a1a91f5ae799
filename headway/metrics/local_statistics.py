"""Statistics of a client's model after local training, which are kept instead of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.metrics.geometry import class_sums, embedded, known_mean, mean_over, rows_of, trained_head
from headway.models.net import Net

PART = 4096  # samples whose features are in memory at the same time


@dataclass(frozen=True)
class LocalStatistics:
    """Statistics of one client after local training, for the diagnostics of norms, classifiers and prototypes."""

    client: int
    counts: Tensor  # [C] training samples per class, n_{k,c}
    rows: Tensor  # [C, d] weight vectors w_c
    raw: Tensor  # [C, d] P_{k,c}: mean raw feature on the client's training data, NaN for classes it lacks
    seen: Tensor  # [C, d] the same of the features as the weight matrix receives them
    norm_sums: Tensor  # [C] sum of ||f(x)|| over test samples of each class
    norm_counts: Tensor  # [C] those samples

    @property
    def held(self) -> Tensor:
        """ID_k: the classes the client has samples of, [C] bool; the others are OOD_k."""
        return self.counts > 0

    def weight_norms(self) -> tuple[float | None, float | None]:
        """Mean ||w_c|| over ID_k and over OOD_k."""
        norms = self.rows.norm(dim=1)  # [C]
        one = torch.ones_like(norms)
        return mean_over(norms, one, self.held), mean_over(norms, one, ~self.held)

    def feature_norms(self) -> tuple[float | None, float | None]:
        """Mean ||f(x)|| over test samples with a label in ID_k and in OOD_k."""
        sums, counts = self.norm_sums, self.norm_counts
        return mean_over(sums, counts, self.held), mean_over(sums, counts, ~self.held)


@torch.no_grad()
def statistics_of(
    net: Net, client: int, counts: Tensor, own: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> LocalStatistics:
    """The statistics of a client's net, from its own training data and from common test samples; on the CPU."""
    head, classes = trained_head(net), net.classes
    x, y = own
    raw = seen = torch.zeros(())
    for xb, yb in zip(x.split(PART), y.split(PART), strict=True):
        h = net.features_of(xb)  # [B, d]
        raw = raw + class_sums(h, yb, classes)
        seen = seen + class_sums(embedded(head, h), yb, classes)
    n = torch.bincount(y, minlength=classes)[:, None]  # [C, 1]
    norms, labels = sample_norms(net, test[0]), test[1]
    return LocalStatistics(
        client,
        counts.cpu(),
        rows_of(head).cpu(),
        (raw / n).cpu(),
        (seen / n).cpu(),
        class_sums(norms[:, None], labels, classes)[:, 0].cpu(),
        torch.bincount(labels, minlength=classes).cpu(),
    )


def sample_norms(net: Net, x: Tensor) -> Tensor:
    """||f(x)|| of every sample, [n]."""
    return torch.cat([net.features_of(part).double().norm(dim=1) for part in x.split(PART)])


@dataclass(frozen=True)
class Norms:
    """Mean norms over clients, of classes that a client has (ID) and lacks (OOD), and those of the global model."""

    weight_id: float | None
    weight_ood: float | None
    weight_global: float | None
    feature_id: float | None
    feature_ood: float | None
    feature_global: float | None


def mean_norms(
    clients: list[LocalStatistics], weight_global: float | None = None, feature_global: float | None = None
) -> Norms:
    """The norms of FedFN's Figures 2 and 3: first over classes or samples of a client, then over clients."""
    weight = [s.weight_norms() for s in clients]
    feature = [s.feature_norms() for s in clients]
    w_id, w_ood, f_id, f_ood = (known_mean(part[i] for part in side) for side in (weight, feature) for i in (0, 1))
    return Norms(w_id, w_ood, weight_global, f_id, f_ood, feature_global)
