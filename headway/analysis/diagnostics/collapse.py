"""Neural collapse: do class means of the global model come to stand as a simplex, and samples on them (FedETF)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.plotting import style
from headway.metrics.collapse import collapse_figures, simplex_cosine
from headway.metrics.geometry import class_means, cosines, embedded, pair_rows, pairs, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.analysis.diagnostics.subject import Subject

ABOUT = (
    "Neural collapse of the global model on test samples; 0 is perfect for all but the cosine. NC1: spread within "
    "classes against spread between them. NC2: how far the angles between centred class means are from a simplex "
    "(all cosines -1/(C'-1), C' counting the classes in the test set: their centred means can form no larger simplex), "
    "and how unequal their lengths. NC3: distance between the centred class means and the weight vectors, both scaled "
    "to one; and their mean cosine (1 is perfect). The neural-collapse error is the same distance of class means that "
    "are not centred, with C = {classes}, all classes of the task, for C': the classifier's simplex, whose vectors "
    "keep their angles when classes are absent. As in FedETF's Figures 5b and 6a (Li et al., 2023). It is taken on raw "
    "features, so that recipes compare, and on what the classifier sees.{absent}"
)
SPACES = {"raw": ("raw features", style.BLUE), "seen": ("what the classifier sees", style.ORANGE)}


def about(classes: int, here: int) -> str:
    """What is shown, and how many classes each simplex has."""
    absent = f" The test samples hold {here} of the {classes} classes." if here < classes else ""
    return ABOUT.format(classes=classes, absent=absent)


def collapse(subject: Subject) -> Finding:
    """NC1, NC2, NC3 and the neural-collapse error, of raw features and of what the classifier sees."""
    subject.need_global_model()
    if subject.classes < 2:
        raise NotApplicable("one class has no angles")
    (_, y), head, names = subject.test, subject.head, subject.names
    rows = rows_of(head)  # [C, d]
    spaces = {"raw": subject.features}
    if head.feat != "id":
        spaces["seen"] = embedded(head, subject.features)
    figures = {space: collapse_figures(e, y, rows if head.feat != "proj+l2" or space == "seen" else rows[:, :0])
               for space, e in spaces.items()}  # fmt: skip
    summary: dict[str, float | None] = {}
    for space, found in figures.items():
        summary |= {key if space == "raw" else f"{key}_seen": value for key, value in found.items()}
    angles = {space: cosines(class_means(e, y, len(rows))) for space, e in spaces.items()}  # [C, C] each
    rounds = [row for row in subject.watched if "nc_error" in row]
    tables: dict[str, list[dict[str, Any]]] = {
        "measures": [{"space": space, **found} for space, found in figures.items()],
        **{f"cosines_{space}": pair_rows("class", names, m, "cosine") for space, m in angles.items()},
    }
    if rounds:
        tables["rounds"] = [{key: row.get(key) for key in ("round", "nc_error", "nc_error_seen")} for row in rounds]
    alt = (
        f"Cosines between class means; a simplex would have {simplex_cosine(subject.classes):.3f} everywhere. "
        "The mean squared distance from it, the neural-collapse error, is "
        f"{style.number_text(summary['error'])} on raw features"
        + (f" and {style.number_text(summary['error_seen'])} on what the classifier sees." if "seen" in spaces else ".")
    )
    return Finding(
        "collapse", "Neural collapse", about(subject.classes, int(y.unique().numel())), summary, tables, alt,
        draw=lambda: figure_of(angles, rounds, names),
    )  # fmt: skip


def figure_of(angles: dict[str, Tensor], rounds: list[dict[str, Any]], names: list[str]) -> Figure:
    """The cosines of class means as a heat map and as a histogram beside the simplex's; the error over rounds."""
    curves = len(rounds) > 1
    figure = style.blank(15.5 if curves else 11.5, 4.8)
    heat, histogram, *more = figure.subplots(1, 3 if curves else 2)
    space, matrix = list(angles.items())[-1]
    label = SPACES[space][0]
    style.named_heat_map(figure, heat, matrix, names, names, f"class means of {label}", "cosine", **style.COSINES)
    heat.set(xlabel="class", ylabel="class")
    edges = torch.linspace(-1, 1, 41)
    for space, matrix in angles.items():
        label, colour = SPACES[space]
        histogram.hist(pairs(matrix).cpu().numpy(), bins=edges.numpy(), color=colour, alpha=0.6, label=label)
    ideal = simplex_cosine(len(names))
    histogram.axvline(ideal, color="black", linestyle="--", label=f"simplex, {ideal:.2f}")
    histogram.set(xlabel="cosine between two class means", ylabel="pairs of classes", xlim=(-1.02, 1.02))
    histogram.set_title("distance from a simplex", fontsize=10)
    style.plain_axes(histogram)
    histogram.set_ylim(top=1.3 * histogram.get_ylim()[1])  # room for the legend
    histogram.legend(fontsize=8, frameon=False)
    for axes in more:
        style.over_rounds(axes, rounds, [("nc_error", *SPACES["raw"]), ("nc_error_seen", *SPACES["seen"])])
        style.from_zero(axes)
        axes.set_ylabel("neural-collapse error")
        axes.set_title("over rounds", fontsize=10)
        axes.legend(fontsize=8, frameon=False)
    return figure
