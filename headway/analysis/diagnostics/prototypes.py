"""Prototype consistency: do clients put a class in the same place after training for themselves (FedETF)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.plotting import style
from headway.metrics.geometry import pair_rows
from headway.metrics.prototypes import class_consistency, classifier_cosines, consistency_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.analysis.diagnostics.subject import Subject

ABOUT = (
    "After local training every client has a mean feature of each class it owns, on its own training data: its "
    "prototype. Consistency of a class is the mean cosine between the prototypes of two clients that both own it; "
    "the figure to remember is the mean over classes with two owners or more (1: clients agree). As in FedETF's "
    "Figure 5a (Li et al., 2023). Beside it the cosine between the flattened classifiers of two clients, Figure 1."
)


def consistency(subject: Subject) -> Finding:
    """Prototype consistency per class and over classes; cosines between clients' classifiers."""
    if len(subject.clients) < 2:
        raise NotApplicable("one client is looked at, and consistency is between two")
    clients, names = subject.local_statistics, subject.names
    raw, seen = (class_consistency([getattr(s, space) for s in clients]) for space in ("raw", "seen"))
    same = subject.head.feat == "id"
    owners = torch.stack([s.held for s in clients]).sum(0)  # [C]
    matrix = classifier_cosines([s.rows for s in clients])  # [K, K]
    summary = consistency_figures(clients)
    ids = [str(s.client) for s in clients]
    tables: dict[str, list[dict[str, Any]]] = {
        "per_class": [
            {"class": name, "owners": int(owners[c]), "consistency": raw[c]}
            | ({} if same else {"consistency_seen": seen[c]})
            for c, name in enumerate(names)
        ],
        "classifiers": pair_rows("client", ids, matrix, "cosine"),
    }
    rounds = [row for row in subject.watched if "consistency" in row]
    if rounds:
        tables["rounds"] = [{"round": row["round"], **{key: row.get(key) for key in summary}} for row in rounds]
    alt = (
        f"Bars: consistency of each class, {style.number_text(summary['consistency'])} on average. "
        f"Heat map: cosines between the classifiers of {len(clients)} clients, "
        f"{style.number_text(summary['classifier_cosine'])} on average."
    )
    return Finding(
        "consistency", "Prototype consistency between clients", ABOUT, summary, tables, alt,
        draw=lambda: figure_of(raw, None if same else seen, matrix, rounds, names, ids),
    )  # fmt: skip


def figure_of(
    raw: list[float | None],
    seen: list[float | None] | None,
    matrix: Tensor,
    rounds: list[dict[str, Any]],
    names: list[str],
    ids: list[str],
) -> Figure:
    curves = len(rounds) > 1
    figure = style.blank(16 if curves else 11.5, 4.8)
    bars, heat, *more = figure.subplots(1, 3 if curves else 2)
    series = [("raw features", raw, style.BLUE)]
    series += [] if seen is None else [("what the classifier sees", seen, style.ORANGE)]
    width = 0.8 / len(series)
    for i, (label, values, colour) in enumerate(series):
        places = np.arange(len(values)) + (i - (len(series) - 1) / 2) * width
        bars.bar(places, np.nan_to_num(style.with_gaps(values)), width, color=colour, label=label)
    bars.axhline(0, color="0.3", linewidth=0.8)
    style.plain_axes(bars)
    style.class_ticks(bars.xaxis, names)
    bars.set(xlabel="class (no bar: less than two owners)", ylabel="mean cosine between clients")
    bars.set_title("prototypes", fontsize=10)
    if len(series) > 1:
        bars.set_ylim(top=1.2)  # room for the legend
        bars.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
    style.named_heat_map(figure, heat, matrix, ids, ids, "classifiers", "cosine", **style.COSINES)
    heat.set(xlabel="client", ylabel="client")
    for axes in more:
        lines = [("consistency", "prototypes, raw features", style.BLUE)]
        lines += [] if seen is None else [("consistency_seen", "prototypes, what the classifier sees", style.ORANGE)]
        style.over_rounds(axes, rounds, [*lines, ("classifier_cosine", "classifiers", style.GREEN)])
        axes.set_ylabel("mean cosine between clients")
        axes.set_title("over rounds", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return figure
