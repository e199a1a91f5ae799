"""Linear CKA: how alike the layers of different clients' models see the same inputs (Kornblith et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.diagnostics.finding import Finding, NotApplicable
from headway.diagnostics.layers import MOST_LAYERS, Layer, activations, layers_of
from headway.diagnostics.palette import GREY, Floats, blank, finite, matrix, mean_of_pairs, ticks
from headway.diagnostics.subject import Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLIENTS = 10
MOST_INPUTS = 2000
MEMORY = 224 * 2**20  # bytes that all clients' Gram matrices may take; fewer inputs are used before it is passed
ABOUT = (
    "Linear CKA between the activations of clients' models on the same {n} test inputs, layer by layer: 1 means that "
    "two clients see the inputs alike up to rotation and scale, 0 that they share nothing. A local model is what a "
    "client holds after one more round of local training (local epochs: {epochs} here, 10 in the paper). Where values "
    "fall towards the end of the net, clients disagree in the classifier most. With fewer inputs than numbers in a "
    "layer (its width in the table) linear CKA is biased upwards, towards 1 for layers that share nothing; the "
    "debiased one, of the unbiased HSIC_1, is not, and stands beside it: trust that one where the two differ. As in "
    "Figures 1, 2 and 11 of Luo et al. (2021){pooled}."
)


def linear_cka(x: Tensor, y: Tensor) -> float:
    """||X^T Y||_F^2 / (||X^T X||_F ||Y^T Y||_F) of column-centred X [N, p], Y [N, q]; NaN where one is constant.

    The paper prints squared norms below the line; those would not make CKA(X, X) = 1.
    """
    x, y = centred(x), centred(y)
    below = (x.T @ x).norm() * (y.T @ y).norm()
    return float((x.T @ y).square().sum() / below) if below > 0 else float("nan")


def centred(x: Tensor) -> Tensor:
    x = x.double()
    return x - x.mean(0)


def gram_row(x: Tensor) -> Tensor:
    """K = X X^T of centred X at norm one, its upper triangle as a row [N (N + 1) / 2].

    Off the diagonal times sqrt(2), so that a product of two rows is <K, L>_F, which is CKA: <K, L> = ||X^T Y||_F^2.
    """
    x = centred(x)
    scale = float(x.abs().max())
    k = x @ x.T / scale**2 if scale > 0 else x @ x.T  # [N, N]
    size = k.norm()
    k = k * (2**0.5 / size)
    k.diagonal().mul_(0.5**0.5)
    i, j = torch.triu_indices(len(k), len(k))
    return k[i, j].float()  # NaN where all inputs look the same: 0 / 0


def products(rows: Tensor, block: int = 1 << 18) -> Floats:
    """All pairs' products of rows [K, M], summed in float64, [K, K]."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for part in rows.split(block, dim=1):
        total += part.double() @ part.double().T
    found: Floats = total.numpy()
    return found


def debiased(plain: Floats, rows: Tensor, n: int) -> Floats:
    """CKA of the unbiased HSIC_1 (Song et al., 2012) from <K, L> and the diagonals of the same centred Gram matrices.

    Rows of a centred K sum to zero, so 1'K~1 = -tr K without its diagonal k, and 1'K~L~1 = k.l:
    n (n - 3) HSIC_1 = <K, L> - n/(n-2) k.l + tr K tr L / ((n-1)(n-2)).
    """
    first = torch.arange(n)
    diagonal = rows[:, first * n - first * (first - 1) // 2].double()  # [K, n], where a triangle's rows begin
    trace = diagonal.sum(1)
    h = torch.from_numpy(plain) - n / (n - 2) * (diagonal @ diagonal.T)
    h = h + torch.outer(trace, trace) / ((n - 1) * (n - 2))  # [K, K]
    size = h.diagonal().sqrt()
    found: Floats = (h / torch.outer(size, size)).clamp(max=1.0).numpy()
    return found


def inputs_within(memory: int, clients: int, layers: int, most: int = MOST_INPUTS) -> int:
    """How many inputs leave clients * layers triangles of N^2 / 2 floats within the memory."""
    return min(most, int((2 * memory / (4 * clients * layers)) ** 0.5))


def cka(subject: Subject) -> Finding:
    """Linear CKA per layer between clients' models after local training (10.3)."""
    few = replace(subject, most_clients=min(subject.most_clients, MOST_CLIENTS))
    clients = few.clients
    if len(clients) < 2:
        raise NotApplicable("cka compares clients' models, and this run has one client with data")
    x = few.test[0]
    n = min(len(x), inputs_within(MEMORY, len(clients), MOST_LAYERS))
    if n < 4:
        raise NotApplicable(f"cka needs at least 4 test inputs, and there are {n}")
    x = x[torch.from_numpy(np.linspace(0, len(x) - 1, n).astype(np.int64)).to(x.device)]
    layers = layers_of(few.net, x)
    grams = {layer.name: torch.empty(len(clients), n * (n + 1) // 2) for layer in layers}
    for i, local in enumerate(few.local_models()):
        given = activations(local.net, x, layers)
        for layer in layers:
            grams[layer.name][i] = gram_row(given.pop(layer.name))
    found, unbiased = {}, {}
    for layer in layers:
        rows = grams.pop(layer.name)
        plain = products(rows)
        found[layer.name], unbiased[layer.name] = plain.clip(max=1.0), debiased(plain, rows, n)
    return finding(found, unbiased, layers, clients, n, few.task.epochs)


def finding(
    found: dict[str, Floats],
    unbiased: dict[str, Floats],
    layers: Sequence[Layer],
    clients: Sequence[int],
    n: int,
    epochs: int,
) -> Finding:
    means, fair = ({name: mean_of_pairs(v) for name, v in each.items()} for each in (found, unbiased))
    pairs = [
        {
            "layer": name,
            "client": a,
            "other": b,
            "cka": finite(values[i, j]),
            "cka_debiased": finite(unbiased[name][i, j]),
        }
        for name, values in found.items()
        for i, a in enumerate(clients)
        for j, b in enumerate(clients)
        if i < j
    ]
    by_layer = [
        {
            "layer": layer.name,
            "width": layer.width,
            "averaged_to": layer.positions or None,
            "inputs": n,
            "mean_cka": means[layer.name],
            "mean_cka_debiased": fair[layer.name],
        }
        for layer in layers
    ]
    known = {name: v for name, v in means.items() if v is not None}
    lowest = min(known, key=lambda name: known[name]) if known else None
    summary: dict[str, Any] = {
        "mean CKA of the first layer": means[layers[0].name],
        "mean CKA of the features": means["features"],
        "mean CKA of the logits": means["logits"],
        "debiased CKA of the features": fair["features"],
        "debiased CKA of the logits": fair["logits"],
        "least alike layer": lowest,
        "clients": len(clients),
        "inputs": n,
    }
    averaged = [f"{layer.name} to {layer.positions}" for layer in layers if layer.positions]
    pooled = f"; maps of more than 4096 numbers are averaged over positions: {', '.join(averaged)}" if averaged else ""
    told = ", ".join(f"{name} {v:.2f}" for name, v in known.items())
    return Finding(
        "cka",
        "Similarity of clients' layers (CKA)",
        ABOUT.format(n=n, epochs=epochs, pooled=pooled),
        summary,
        {"pairs": pairs, "layers": by_layer},
        f"Heat maps of CKA between {len(clients)} clients for chosen layers, and its mean over pairs by layer: {told}.",
        lambda: draw(found, fair, [layer.name for layer in layers], clients),
    )


def draw(
    found: dict[str, Floats], fair: dict[str, float | None], names: Sequence[str], clients: Sequence[int]
) -> Figure:
    """Heat maps of the first, a middle and the last two layers; below, the mean of every layer."""
    shown = list(dict.fromkeys([names[0], names[(len(names) - 1) // 2], names[-2], names[-1]]))
    figure = blank(3.1 * len(shown) + 0.6, 6.4)
    grid = figure.add_gridspec(2, len(shown), height_ratios=(1.35, 1))
    low = min(0.0, *(float(np.nanmin(found[n], initial=0.0)) for n in shown))
    top = []
    for column, name in enumerate(shown):
        axes = figure.add_subplot(grid[0, column])
        image = matrix(axes, found[name], low, 1.0, numbers=len(clients) <= 10)
        axes.set_title(name, fontsize=10)
        ticks(axes.xaxis, [str(k) for k in clients], 12)
        ticks(axes.yaxis, [str(k) for k in clients], 12)
        axes.set_xlabel("client", fontsize=9)
        if not column:
            axes.set_ylabel("client", fontsize=9)
        top.append(axes)
    figure.colorbar(image, ax=top, label="CKA", shrink=0.9)
    axes = figure.add_subplot(grid[1, :])
    place = np.arange(len(names))
    pairs = [v[np.triu_indices(len(v), 1)] for v in (found[name] for name in names)]
    for i, values in zip(place, pairs, strict=True):
        dot: dict[str, Any] = {"s": 10, "color": GREY, "linewidths": 0, "label": None if i else "a pair of clients"}
        axes.scatter(np.full(len(values), i), values, **dot)
    means = [np.nan if (m := mean_of_pairs(found[name])) is None else m for name in names]
    axes.plot(place, means, marker="o", color="#0072B2", label="mean over pairs")
    level = [np.nan if (m := fair[name]) is None else m for name in names]
    axes.plot(place, level, marker="s", linestyle="--", color="#D55E00", label="mean over pairs, debiased")
    low = min(low, float(np.nanmin(level, initial=0.0)))
    axes.set(ylabel="CKA between clients", xlim=(-0.5, len(names) - 0.5), ylim=(low, 1.03))
    ticks(axes.xaxis, names, len(names), rotation=0 if len(names) <= 8 else 30, fontsize=9)
    if len(names) > 8:
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")
    axes.set_xlabel("layer, from input to output")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return figure
