"""Prototype consistency: do clients put a class in the same place after training for themselves (FedETF)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.diagnostics import drawing
from headway.diagnostics.finding import Finding, NotApplicable
from headway.diagnostics.geometry import cosines, known_mean, pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from headway.diagnostics.local_statistics import LocalStatistics
    from headway.diagnostics.subject import Subject

ABOUT = (
    "After local training every client has a mean feature of each class it owns, on its own training data: its "
    "prototype. Consistency of a class is the mean cosine between the prototypes of two clients that both own it; "
    "the figure to remember is the mean over classes with two owners or more (1: clients agree). As in FedETF's "
    "Figure 5a (Li et al., 2023). Beside it the cosine between the flattened classifiers of two clients, Figure 1."
)


def class_consistency(prototypes: Sequence[Tensor]) -> list[float | None]:
    """Per class the mean cosine over pairs of clients that own it, from [C, d] a client with NaN for classes it lacks.

    None for a class with less than two owners.
    """
    stacked = torch.stack(list(prototypes), 1)  # [C, K, d]
    return [known_mean(pairs(cosines(P))) for P in stacked]


def classifier_cosines(rows: Sequence[Tensor]) -> Tensor:
    """cos between the flattened classifiers of two clients, [K, K]."""
    return cosines(torch.stack([r.flatten() for r in rows]))


def consistency_figures(clients: Sequence[LocalStatistics]) -> dict[str, float | None]:
    """The figures to remember; also taken round by round while a run is watched."""
    found = {"consistency": known_mean(class_consistency([s.raw for s in clients]))}
    if not all(same_space(s) for s in clients):
        found["consistency_seen"] = known_mean(class_consistency([s.seen for s in clients]))
    return found | {"classifier_cosine": known_mean(pairs(classifier_cosines([s.rows for s in clients])))}


def same_space(s: LocalStatistics) -> bool:
    """Whether the classifier sees the raw features."""
    return s.raw.shape == s.seen.shape and torch.equal(s.raw.nan_to_num(), s.seen.nan_to_num())


def consistency(subject: Subject) -> Finding:
    """Prototype consistency per class and over classes; cosines between clients' classifiers (METHODS 10.6)."""
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
        "classifiers": drawing.matrix_rows("client", ids, matrix, "cosine"),
    }
    rounds = [row for row in subject.watched if "consistency" in row]
    if rounds:
        tables["rounds"] = [{"round": row["round"], **{key: row.get(key) for key in summary}} for row in rounds]
    alt = (
        f"Bars: consistency of each class, {drawing.told(summary['consistency'])} on average. Heat map: cosines "
        f"between the classifiers of {len(clients)} clients, {drawing.told(summary['classifier_cosine'])} on average."
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
    figure = drawing.blank(16 if curves else 11.5, 4.8)
    bars, heat, *more = figure.subplots(1, 3 if curves else 2)
    series = [("raw features", raw, drawing.BLUE)]
    series += [] if seen is None else [("what the classifier sees", seen, drawing.ORANGE)]
    width = 0.8 / len(series)
    for i, (label, values, colour) in enumerate(series):
        places = torch.arange(len(values)) + (i - (len(series) - 1) / 2) * width
        bars.bar(places, drawing.as_tensor(values).nan_to_num(), width, color=colour, label=label)
    bars.axhline(0, color="0.3", linewidth=0.8)
    drawing.plain_axes(bars)
    drawing.name_x(bars, names)
    bars.set(xlabel="class (no bar: less than two owners)", ylabel="mean cosine between clients")
    bars.set_title("prototypes", fontsize=10)
    if len(series) > 1:
        bars.set_ylim(top=1.2)  # room for the legend
        bars.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
    drawing.heat(figure, heat, matrix, ids, ids, "classifiers", "cosine", **drawing.COSINES)
    heat.set(xlabel="client", ylabel="client")
    for axes in more:
        lines = [("consistency", "prototypes, raw features", drawing.BLUE)]
        lines += [] if seen is None else [("consistency_seen", "prototypes, what the classifier sees", drawing.ORANGE)]
        drawing.over_rounds(axes, rounds, [*lines, ("classifier_cosine", "classifiers", drawing.GREEN)])
        axes.set_ylabel("mean cosine between clients")
        axes.set_title("over rounds", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return figure
