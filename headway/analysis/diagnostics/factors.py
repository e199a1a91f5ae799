"""Four-factor analysis of the global model: how alike its weights and classes are, how well they match (FedFN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import Finding
from headway.analysis.plotting import style
from headway.metrics.geometry import (
    class_means,
    class_sums,
    cosines,
    embedded,
    finite_or_none,
    known_mean,
    pair_rows,
    pairs,
    rows_of,
    unit,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.analysis.diagnostics.subject import Subject

ABOUT = (
    "Four factors of the global model on test samples, by cosine, from -1 to 1. Weight similarity: between the weight "
    "vectors of two classes, lower is better. Inter-class similarity: between the mean features (prototypes) of two "
    "classes, lower is better. Intra-class similarity: between a sample's feature and its class's prototype, higher is "
    "better. Alignment: between a class's prototype and its weight vector, higher is better; biases are left out. "
    "Drawn as in FedFN's Figures 1 and 5 (Kim et al., 2023)."
)
SPACES = {
    "raw": "features",
    "normalised": "unit features",
    "seen": "what the classifier sees",
}


@dataclass(frozen=True)
class Factors:
    """The three factors that look at features; `alignment` is unknown where weights live in another space."""

    inter: Tensor  # [C, C] cos(P_c, P_c')
    intra: Tensor  # [C] mean_x cos(f(x), P_c)
    alignment: Tensor  # [C] cos(P_c, w_c)


def factors_of(h: Tensor, y: Tensor, rows: Tensor) -> Factors:
    """The factors of FedFN (Kim et al., 2023), Appendix B.3, of features h [n, d], labels y, weight vectors [C, d']."""
    classes = len(rows)
    P = class_means(h, y, classes)  # [C, d]
    own = (unit(h) * unit(P)[y]).sum(1)  # [n] f(x).P_y / (||f(x)|| ||P_y||)
    known = own.isfinite()  # a dead feature has no direction
    n = torch.bincount(y[known], minlength=classes)
    intra = class_sums(own[known][:, None], y[known], classes)[:, 0] / n  # [C]
    same = P.shape[1] == rows.shape[1]
    alignment = (unit(P) * unit(rows)).sum(1) if same else torch.full_like(intra, float("nan"))  # [C]
    return Factors(cosines(P), intra, alignment)


def four_factors(subject: Subject) -> Finding:
    """Weight similarity, inter-class and intra-class similarity, prototype-weight alignment."""
    subject.need_global_model()
    (_, y), h, head, names = subject.test, subject.features, subject.head, subject.names
    rows = rows_of(head)  # [C, d]
    weights = cosines(rows)  # [C, C]
    spaces = {"raw": h, "normalised": unit(h).nan_to_num()}
    if head.feat == "proj+l2":
        spaces["seen"] = embedded(head, h)
    found = {space: factors_of(e, y, rows if space == "seen" or head.feat != "proj+l2" else rows[:, :0])
             for space, e in spaces.items()}  # fmt: skip
    summary: dict[str, float | None] = {"weight_similarity": known_mean(pairs(weights))}
    for space, f in found.items():
        end = "" if space == "raw" else f"_{space}"
        summary[f"inter_class{end}"] = known_mean(pairs(f.inter))
        summary[f"intra_class{end}"] = known_mean(f.intra)
        if space == "seen" or head.feat != "proj+l2":
            summary[f"alignment{end}"] = known_mean(f.alignment)
    per_class = [
        {"class": name}
        | {f"intra_{space}": finite_or_none(f.intra[c]) for space, f in found.items()}
        | {f"alignment_{space}": finite_or_none(f.alignment[c]) for space, f in found.items()}
        for c, name in enumerate(names)
    ]
    tables = {
        "per_class": per_class,
        "weights": pair_rows("class", names, weights, "cosine"),
        **{f"inter_{space}": pair_rows("class", names, f.inter, "cosine") for space, f in found.items()},
    }
    shown = {space: found[space] for space in ("raw", "seen" if "seen" in found else "normalised")}
    alt = (
        "Heat maps of cosines between classes, with the mean off the diagonal. "
        f"Weight vectors: {style.number_text(summary['weight_similarity'])}; "
        f"prototypes: {style.number_text(summary['inter_class'])}. "
        "Below, per class, the mean cosine of samples with their prototype "
        f"({style.number_text(summary['intra_class'])} on average) and of prototypes with weight vectors."
    )
    note = "" if subject.shares_head else " The classifier is the mean of the clients' own: no global one is trained."
    return Finding(
        "four_factors", "Four factors of the global model", ABOUT + note, summary, tables, alt,
        draw=lambda: figure_of(weights, shown, names),
    )  # fmt: skip


def figure_of(weights: Tensor, shown: dict[str, Factors], names: list[str]) -> Figure:
    figure = style.blank(15, 8.4)
    (top, below), (upper, per_class), (lower, per_class_below) = figure.subplots(2, 3).T
    style.named_heat_map(figure, top, weights, names, names, "weight similarity", "cos(w, w')", **style.COSINES)
    top.set(xlabel="class", ylabel="class")
    below.axis("off")
    means = [f"weight similarity  {style.number_text(known_mean(pairs(weights)), '{:.2f}')}"]
    for axes, both, (space, f) in zip((upper, per_class), (lower, per_class_below), shown.items(), strict=True):
        label = SPACES[space]
        style.named_heat_map(
            figure, axes, f.inter, names, names, f"inter-class, {label}", "cos(P, P')", **style.COSINES
        )
        axes.set(xlabel="class", ylabel="class")
        columns = {"intra-class": f.intra, "alignment": f.alignment}
        columns = {name: values for name, values in columns.items() if values.isfinite().any()} or columns
        matrix = torch.stack(list(columns.values()), 1)  # [C, 1 or 2]
        style.named_heat_map(
            figure, both, matrix, list(columns), names, f"per class, {label}", "cosine", **style.COSINES
        )
        both.set_ylabel("class")
        values = {"inter-class": pairs(f.inter), **columns}
        means += [
            "",
            f"{label}:",
            *(f"  {key}  {style.number_text(known_mean(v), '{:.2f}')}" for key, v in values.items()),
        ]
    below.text(0.1, 0.95, "\n".join(["means over classes or pairs", "", *means]), va="top", fontsize=11)
    figure.suptitle("Four factors of the global model", fontsize=12)
    return figure
