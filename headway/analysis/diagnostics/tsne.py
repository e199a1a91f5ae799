"""t-SNE pictures: test features by truth and prediction, and the clients' class vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.analysis.diagnostics.calibrated import Calibrated, calibrated
from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import (
    COSINES,
    LEGEND,
    Floats,
    blank,
    class_colours,
    class_legend,
    heat_map,
    label,
    mark,
    scatter_classes,
    tick_names,
    without_numbers,
)
from headway.base.tree import seed_of
from headway.metrics.geometry import known_mean, mean_of_pairs, trained_head
from headway.metrics.prototypes import class_consistency, classifier_cosines
from headway.models.net import Net
from headway.training import rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 2000
COMPONENTS = 50  # of PCA, before t-SNE
PERPLEXITY = 30.0
Ints = npt.NDArray[np.int64]
ABOUT = (
    "One t-SNE picture of {n} test features of the global model (PCA to {pca} dimensions first), coloured by {panels}. "
    "Clusters that the truth tells apart and the predictions do not are the classifier's fault and not the features'."
    "{calibration} As in Figures 5 and 13 of Luo et al. (2021). Distances between clusters mean nothing."
)
ABOUT_VECTORS = (
    "Each client's model after one more round of local training (local epochs: {epochs}). Left: the rows of the "
    "clients' classifiers by t-SNE, one point a client and class; filled where the client has training samples of the "
    "class, hollow where it has none. Middle: class prototypes, the mean feature of the client's own samples of a "
    "class. Points of one class lie together where clients agree. Right: cosines between clients' whole classifiers, "
    "their weight vectors as the logits use them. "
    "As in Figure 1 of Li et al. (2023).{frozen}"
)


def perplexity_for(n: int) -> float:
    """30, or a third of the neighbours there are."""
    return min(PERPLEXITY, max(1.0, (n - 1) / 3))


def embedding(points: Floats, seed: int) -> Floats:
    """t-SNE of rows [n, d] in the plane, [n, 2]; equal rows fall on one point, a lone or constant one on the origin."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    distinct, where = np.unique(points, axis=0, return_inverse=True)
    if len(distinct) < 3:
        return np.stack([where.reshape(-1).astype(float), np.zeros(len(points))], 1)
    small = PCA(min(COMPONENTS, *distinct.shape), svd_solver="full").fit_transform(distinct.astype(np.float64))
    if small.shape[1] < 2:
        small = np.concatenate([small, np.zeros_like(small)], 1)
    how = {"perplexity": perplexity_for(len(distinct)), "init": "pca", "random_state": seed % 2**32, "n_jobs": 1}
    found: Floats = TSNE(2, **how).fit_transform(small.astype(np.float32))[where.reshape(-1)]
    return found


def tsne(subject: Subject) -> Finding:
    """One embedding of test features: by truth, by prediction before, by prediction after calibration."""
    if not rounds.has_global_model(subject.saved.recipe, subject.task):
        raise NotApplicable("tsne shows the global model's features, and under this recipe bodies are personal")
    y = subject.test[1]
    chosen = torch.from_numpy(np.linspace(0, len(y) - 1, min(len(y), MOST_POINTS)).astype(np.int64)).to(y.device)
    h = subject.features[chosen]  # [n, d]
    if len(h) < 4 or not torch.isfinite(h).all():
        why = "are not finite" if len(h) >= 4 else f"are only {len(h)}"
        raise NotApplicable(f"tsne needs at least 4 finite test features, and they {why}")
    pair = calibrated(subject, make=True)
    labels = {"truth": y[chosen].cpu().numpy()} | predictions(subject, pair, h)
    at = embedding(h.cpu().numpy(), seed_of(subject.task.seed, "tsne"))
    return finding(subject, at, labels, pair)


@torch.no_grad()
def predictions(subject: Subject, pair: Calibrated | None, h: Tensor) -> dict[str, Ints]:
    """What the model, or the one before and the one after calibration, makes of the features."""
    nets: dict[str, Net] = {"prediction": subject.net}
    if pair:
        nets = {"prediction before calibration": pair.before, f"prediction after {pair.name}": pair.after}
    return {title: net.head(h).argmax(1).cpu().numpy() for title, net in nets.items()}


def finding(subject: Subject, at: Floats, labels: Mapping[str, Ints], pair: Calibrated | None) -> Finding:
    truth, names = labels["truth"], subject.names
    right = {title: float((values == truth).mean()) for title, values in labels.items() if title != "truth"}
    points = [
        {"x": float(at[i, 0]), "y": float(at[i, 1])} | {title: names[values[i]] for title, values in labels.items()}
        for i in range(len(at))
    ]
    note = f" Calibration: {pair.source}." if pair else " This recipe has no classifier to calibrate."
    pca = min(COMPONENTS, len(at), subject.features.shape[1])
    about = ABOUT.format(n=len(at), pca=pca, panels=", by ".join(labels), calibration=note)
    accuracies = "; ".join(f"{title}: {v:.1%} right" for title, v in right.items())
    return Finding(
        "tsne",
        "Test features by truth and prediction (t-SNE)",
        about,
        {f"accuracy of these points ({title})": v for title, v in right.items()} | {"points": len(at)},
        {"points": points},
        f"{len(labels)} scatter plots of {len(at)} features, coloured by {', by '.join(labels)} ({accuracies}).",
        lambda: draw(at, labels, names),
    )


def draw(at: Floats, labels: Mapping[str, Ints], names: Sequence[str]) -> Figure:
    figure = blank(4.3 * len(labels) + 1.5, 4.6)
    panels = np.atleast_1d(figure.subplots(1, len(labels), sharex=True, sharey=True))
    for axes, (title, values) in zip(panels, labels.items(), strict=True):
        scatter_classes(axes, at, values, len(names), s=14 if len(at) > 500 else 24, alpha=0.8)
        wrong = int((values != labels["truth"]).sum())
        missed = "" if title == "truth" else f"\n{1 - wrong / len(at):.1%} right"
        axes.set_title(label(title, 44) + missed, fontsize=10)
        without_numbers(axes)
    class_legend(figure, list(panels), names)
    return figure


def class_vectors(subject: Subject) -> Finding:
    """All clients' classifier rows and class prototypes after local training, coloured by class (FedETF, Figure 1)."""
    clients = list(subject.clients)
    weights, means = [s.rows for s in subject.local_statistics], [s.raw for s in subject.local_statistics]
    frozen = "weight" not in dict(trained_head(subject.net).named_parameters())
    W, P = torch.stack(weights), torch.stack(means)  # [K, C, d], [K, C, d_raw]
    own = subject.counts[clients] > 0  # [K, C]
    if not torch.isfinite(W).all() or not torch.isfinite(P[own]).all():
        raise NotApplicable("class_vectors needs finite vectors, and local training diverged")
    seed = seed_of(subject.task.seed, "class vectors")
    rows_at = embedding(W.flatten(0, 1).numpy(), seed)
    owner, kind = torch.nonzero(own, as_tuple=True)
    protos_at = embedding(P[own].numpy(), seed)
    angles: Floats = classifier_cosines(weights).numpy()
    of_owners = [w.where(has[:, None], torch.nan) for w, has in zip(weights, own, strict=True)]
    agreement = [class_consistency(vectors) for vectors in (weights, of_owners, means)]
    by_class = zip(subject.names, *agreement, strict=True)
    classes = [
        {
            "class": name,
            "owners": int(own[:, c].sum()),
            "rows_of_all": rows,
            "rows_of_owners": owned,
            "prototypes": proto,
        }
        for c, (name, rows, owned, proto) in enumerate(by_class)
    ]
    points = [
        {
            "kind": "row",
            "client": clients[k],
            "class": subject.names[c],
            "owned": bool(own[k, c]),
            "x": float(a),
            "y": float(b),
        }
        for (k, c), (a, b) in zip(np.ndindex(*own.shape), rows_at, strict=True)
    ] + [
        {
            "kind": "prototype",
            "client": clients[k],
            "class": subject.names[c],
            "owned": True,
            "x": float(a),
            "y": float(b),
        }
        for k, c, (a, b) in zip(owner.tolist(), kind.tolist(), protos_at, strict=True)
    ]
    summary: dict[str, Any] = {
        "mean cosine between clients' classifiers": mean_of_pairs(angles),
        "mean cosine of one class's rows": known_mean([r["rows_of_all"] for r in classes]),
        "mean cosine of one class's prototypes": known_mean([r["prototypes"] for r in classes]),
        "clients": len(clients),
    }
    note = " Clients do not train the classifier here, so their rows are the same." if frozen else ""
    return Finding(
        "class_vectors",
        "Clients' class vectors",
        ABOUT_VECTORS.format(epochs=subject.task.epochs, frozen=note),
        summary,
        {"classes": classes, "points": points},
        f"t-SNE of the classifier rows and class prototypes of {len(clients)} clients coloured by class, and the "
        f"cosines between their classifiers.",
        lambda: draw_vectors(rows_at, own.numpy(), protos_at, kind.numpy(), angles, clients, subject.names),
    )


def draw_vectors(
    rows_at: Floats, own: npt.NDArray[np.bool_], protos_at: Floats, kind: Ints, angles: Floats,
    clients: Sequence[int], names: Sequence[str],
) -> Figure:  # fmt: skip
    figure = blank(15, 4.8)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.95))
    classes = np.tile(np.arange(own.shape[1]), len(own))
    colours = class_colours(len(names))
    for c in np.unique(classes[~own.reshape(-1)]):
        mine = rows_at[(classes == c) & ~own.reshape(-1)]
        hollow = {"facecolors": "none", "edgecolors": [colours[c]], "linewidths": 0.8}
        left.scatter(mine[:, 0], mine[:, 1], s=26, marker=mark(c)[1] if len(names) <= LEGEND else "o", **hollow)
    scatter_classes(left, rows_at[own.reshape(-1)], classes[own.reshape(-1)], len(names), s=32)
    left.set_title("classifier rows (hollow: class not owned)", fontsize=10)
    scatter_classes(middle, protos_at, kind, len(names), s=32)
    middle.set_title("class prototypes of owners", fontsize=10)
    without_numbers(left)
    without_numbers(middle)
    image = heat_map(right, angles, len(clients) <= 12, **COSINES)
    right.set_title("cosine between clients' classifiers", fontsize=10)
    right.set(xlabel="client", ylabel="client")
    tick_names(right.xaxis, [str(k) for k in clients], 20)
    tick_names(right.yaxis, [str(k) for k in clients], 20)
    figure.colorbar(image, ax=right, label="cosine", shrink=0.9)
    class_legend(figure, [left, middle], names)
    return figure
