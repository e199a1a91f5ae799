"""Linear CKA: how alike the layers of different clients' models see the same inputs (Kornblith et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.diagnostics.layers import COLUMNS, WIDEST, Layer, layers_of
from headway.analysis.diagnostics.similarity import similarities
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import BLUE, GREY, ORANGE, Floats, blank, heat_map, tick_names
from headway.metrics.geometry import finite_or_none, mean_of_pairs
from headway.models.net import Net

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOUT = (
    "Linear CKA between the activations of clients' models on the same {n} test inputs, layer by layer: 1 means that "
    "two clients see the inputs alike up to rotation and scale, 0 that they share nothing. A local model is what a "
    "client holds after one more round of local training (local epochs: {epochs} here, 10 in the paper). Where values "
    "fall towards the end of the net, clients disagree in the classifier most. Where a layer has as many numbers (its "
    "width in the table) as there are inputs or more, linear CKA is biased upwards, towards 1 for layers that share "
    "nothing; the debiased one, of the unbiased HSIC_1, is not, and stands beside it: trust that one where the two "
    "differ. {pooled} As in Figures 1, 2 and 11 of Luo et al. (2021), who take 50,000 inputs."
)


def cka(subject: Subject) -> Finding:
    """Linear CKA per layer between clients' models after local training .

    On test inputs: of training inputs every client would have seen its own before.
    """
    clients = subject.clients
    if len(clients) < 2:
        raise NotApplicable("cka compares clients' models, and this run has one client with data")
    x = subject.test[0]
    if len(x) < 4:
        raise NotApplicable(f"cka needs at least 4 test inputs, and there are {len(x)}")
    layers = layers_of(subject.net, x)

    def models() -> Iterator[Net]:
        for done, local in enumerate(subject.local_models(), 1):
            subject.say(f"activations of client {done} of {len(clients)}")
            yield local.net

    found, unbiased = {}, {}
    for layer, plain, fair in similarities(models, len(clients), x, layers):
        subject.say(f"pairs of clients in layer {layer.name}")
        found[layer.name], unbiased[layer.name] = plain, fair
    return finding(found, unbiased, layers, clients, len(x), subject.task.epochs)


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
            "cka": finite_or_none(values[i, j]),
            "cka_debiased": finite_or_none(unbiased[name][i, j]),
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
    pooled = (
        f"Maps are flattened, but those of more than {WIDEST} numbers are averaged over positions first, to at most "
        f"4x4 and so that {COLUMNS} numbers are left where channels allow: {', '.join(averaged)}."
        if averaged
        else "Maps are flattened; none is averaged."
    )
    by_name = ", ".join(f"{name} {v:.2f}" for name, v in known.items())
    return Finding(
        "cka",
        "Similarity of clients' layers (CKA)",
        ABOUT.format(n=n, epochs=epochs, pooled=pooled),
        summary,
        {"pairs": pairs, "layers": by_layer},
        f"Heat maps of CKA between {len(clients)} clients for chosen layers, and its mean over pairs: {by_name}.",
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
        image = heat_map(axes, found[name], len(clients) <= 10, vmin=low, vmax=1.0)
        axes.set_title(name, fontsize=10)
        tick_names(axes.xaxis, [str(k) for k in clients], 12)
        tick_names(axes.yaxis, [str(k) for k in clients], 12)
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
    axes.plot(place, means, marker="o", color=BLUE, label="mean over pairs")
    level = [np.nan if (m := fair[name]) is None else m for name in names]
    axes.plot(place, level, marker="s", linestyle="--", color=ORANGE, label="mean over pairs, debiased")
    low = min(low, float(np.nanmin(level, initial=0.0)))
    axes.set(ylabel="CKA between clients", xlim=(-0.5, len(names) - 0.5), ylim=(low, 1.03))
    tick_names(axes.xaxis, names, len(names), rotation=0 if len(names) <= 8 else 30, fontsize=9)
    if len(names) > 8:
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")
    axes.set_xlabel("layer, from input to output")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    return figure
