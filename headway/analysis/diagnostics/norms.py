"""Norms of weights and features: of classes a client has and lacks (FedFN), and class by class (CCVR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.calibrated import calibrated
from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.plotting import style
from headway.metrics.geometry import finite_or_none, known_mean, rows_of
from headway.metrics.local_statistics import LocalStatistics, Norms, mean_norms

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.analysis.diagnostics.subject import Subject

ABOUT = (
    "Mean norms after local training of the last global model. ID: over the classes a client has training samples of; "
    "OOD: over those it lacks; global: of the global model over all classes. Features are taken on test samples with "
    "labels in those classes. A client whose ID norms stand above the global ones has grown for its own classes: the "
    "discrepancy, local ID minus global, grows with the skew. Drawn as in FedFN's Figures 2 and 3 (Kim et al., 2023)."
)
CLASSES = (
    "The norm of each class's weight vector in the clients' classifiers after local training, beside the samples of "
    "that class each client has; and in the global classifier, before and after calibration. "
    "Local norms that follow the label counts show a biased classifier; `correlation` is the mean over clients of "
    "Pearson's correlation between counts and norms. Where the classifiers were watched during the run, its first, a "
    "middle and its last watched round are drawn too, each with the clients that took part. Drawn as in CCVR's "
    "Figures 3, 10 and 12 (Luo et al., 2021)."
)
SIDES = (("id", "local, classes it has (ID)", style.BLUE), ("ood", "local, classes it lacks (OOD)", style.ORANGE))


# ---- own and other classes
def norms(subject: Subject) -> Finding:
    """Weight and feature norms on a client's own classes, on the others, and of the global model."""
    clients = subject.local_statistics
    weight = feature = None
    if subject.has_global_model:
        weight = float(rows_of(subject.head).norm(dim=1).mean())
        feature = finite_or_none(subject.features.double().norm(dim=1).mean())
    found = mean_norms(clients, weight, feature)
    summary = asdict(found) | {
        "weight_discrepancy": difference(found.weight_id, weight),
        "feature_discrepancy": difference(found.feature_id, feature),
    }
    per_client = [per_client_row(s) for s in clients]
    keys = tuple(asdict(found))
    rounds = [
        {"round": row["round"], **{key: row.get(key) for key in keys}} for row in subject.watched if keys[0] in row
    ]
    tables = {"per_client": per_client} | ({"rounds": rounds} if rounds else {})
    text = {key: style.number_text(value) for key, value in summary.items()}
    alt = (
        f"Weight norms: local ID {text['weight_id']}, local OOD {text['weight_ood']}, global {text['weight_global']}. "
        f"Feature norms: local ID {text['feature_id']}, local OOD {text['feature_ood']}, global "
        f"{text['feature_global']}." + (f" Curves over {len(rounds)} watched rounds." if rounds else "")
    )
    return Finding(
        "norms", "Norms on own and other classes", ABOUT, summary, tables, alt,
        draw=lambda: norms_figure(found, per_client, rounds),
    )  # fmt: skip


def difference(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def per_client_row(s: LocalStatistics) -> dict[str, Any]:
    (w_id, w_ood), (f_id, f_ood) = s.weight_norms(), s.feature_norms()
    return {"client": s.client, "classes": int(s.held.sum()), "weight_id": w_id, "weight_ood": w_ood,
            "feature_id": f_id, "feature_ood": f_ood}  # fmt: skip


def norms_figure(found: Norms, per_client: list[dict[str, Any]], rounds: list[dict[str, Any]]) -> Figure:
    figure = style.blank(11, 4.6)
    for axes, what in zip(figure.subplots(1, 2), ("weight", "feature"), strict=True):
        style.plain_axes(axes)
        every = getattr(found, f"{what}_global")
        if len(rounds) > 1:
            style.over_rounds(axes, rounds, [(f"{what}_{side}", label, colour) for side, label, colour in SIDES])
            line = style.with_gaps([row[f"{what}_global"] for row in rounds])
            axes.plot([row["round"] for row in rounds], line, "k--", label="global, all classes")
        else:
            for place, (side, label, colour) in enumerate(SIDES):
                values = style.with_gaps([row[f"{what}_{side}"] for row in per_client])
                spread = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
                axes.scatter(place + spread, values, color=colour, s=22, alpha=0.8, label=label)
                mean = getattr(found, f"{what}_{side}")
                if mean is not None:
                    axes.hlines(mean, place - 0.32, place + 0.32, color=colour, linewidth=2)
            if every is not None:
                axes.axhline(every, color="black", linestyle="--", label="global, all classes")
            axes.set_xticks([0, 1], ["local ID", "local OOD"])
            axes.set_xlabel("a dot is a client, in the order of their ids; a bar is their mean")
        style.from_zero(axes)
        axes.set_ylabel("mean norm")
        axes.set_title("weight vectors ||w||" if what == "weight" else "features ||f(x)||", fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


# ---- class by class
def classifier_norms(subject: Subject) -> Finding:
    """||w_c|| per class and client beside label counts; the global ones before and after calibration."""
    if not subject.head.moving:
        raise NotApplicable(f"the classifier of {subject.saved.recipe.title} is fixed, so its norms never change")
    clients, names = subject.local_statistics, subject.names
    local = torch.stack([s.rows.norm(dim=1) for s in clients])  # [K, C]
    counts = torch.stack([s.counts for s in clients])  # [K, C]
    whole: dict[str, Tensor] = {}
    note = ""
    if subject.has_global_model:
        calibrations, note = after_calibration(subject)
        whole = {"global": rows_of(subject.head).norm(dim=1).cpu()} | calibrations  # [C] each
    tables: dict[str, list[dict[str, Any]]] = {
        "local": [
            {"client": s.client, "class": name, "samples": int(counts[k, c]), "norm": float(local[k, c])}
            for k, s in enumerate(clients)
            for c, name in enumerate(names)
        ]
    }
    if whole:
        tables["global"] = [
            {"class": name, **{key: float(v[c]) for key, v in whole.items()}} for c, name in enumerate(names)
        ]
    alike = [correlation(counts[k].double(), local[k]) for k in range(len(clients))]
    summary: dict[str, float | None] = {"correlation": known_mean(alike), "local_spread": known_mean(spread(local))}
    for key, v in whole.items():
        summary[f"{key}_spread"] = finite_or_none(spread(v[None])[0])
    alt = (
        f"Heat maps over clients and classes: label counts, and weight norms after local training; their correlation "
        f"is {style.number_text(summary['correlation'])} on average."
        + (f" Below, norms per class of {', '.join(whole)}." if whole else "")
    )
    watched = watched_classifiers(subject.watched)
    shown = chosen_rounds(watched)
    if shown:
        tables["rounds"] = [row.figures() for row in watched]
        tables["watched"] = [line for row in shown for line in row.lines(names)]
        alt += f" Norms after local training in rounds {', '.join(str(row.round) for row in shown)} as heat maps too."
    ids = [str(s.client) for s in clients]
    return Finding(
        "classifier_norms", "Classifier weight norms", CLASSES + " A spread is the standard deviation over classes "
        f"divided by the mean.{note}", summary, tables, alt,
        draw=lambda: classifier_figure(counts, local, whole, shown, ids, names),
    )  # fmt: skip


@dataclass(frozen=True)
class WatchedClassifiers:
    """The clients' classifiers after local training in a round that was watched."""

    round: int
    clients: list[str]
    counts: Tensor  # [K, C] training samples
    norms: Tensor  # [K, C] ||w_c||, NaN where training diverged

    @property
    def correlations(self) -> list[float | None]:
        return [correlation(n, w) for n, w in zip(self.counts, self.norms, strict=True)]

    def figures(self) -> dict[str, Any]:
        spreads = known_mean(spread(self.norms))
        return {"round": self.round, "correlation": known_mean(self.correlations), "local_spread": spreads}

    def lines(self, names: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "round": self.round,
                "client": k,
                "class": name,
                "samples": int(self.counts[i, c]),
                "norm": finite_or_none(self.norms[i, c]),
            }
            for i, k in enumerate(self.clients)
            for c, name in enumerate(names)
        ]


def watched_classifiers(rows: Sequence[Mapping[str, Any]]) -> list[WatchedClassifiers]:
    """What `--watch classifiers` wrote, round by round."""
    found = []
    for row in rows:
        if seen := row.get("classifiers"):
            counts = torch.tensor([client["counts"] for client in seen.values()], dtype=torch.float64)
            norms = torch.from_numpy(np.stack([style.with_gaps(client["norms"]) for client in seen.values()]))
            found.append(WatchedClassifiers(row["round"], list(seen), counts, norms))
    return found


def chosen_rounds(watched: Sequence[WatchedClassifiers]) -> list[WatchedClassifiers]:
    """The first, a middle and the last."""
    return [watched[i] for i in sorted({0, len(watched) // 2, len(watched) - 1})] if watched else []


def spread(rows: Tensor) -> Tensor:
    """std / mean over classes of each row, [K]."""
    return rows.std(dim=1, correction=0) / rows.mean(dim=1)


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Pearson's; None where one of the two does not vary."""
    a, b = a - a.mean(), b - b.mean()
    size = float(a.norm() * b.norm())
    return float(a @ b) / size if size > 0 else None


def after_calibration(subject: Subject) -> tuple[dict[str, Tensor], str]:
    """||w_c|| of every calibrated classifier of this run, [C], and a word on one that was made for the occasion.

    By the run's own recipe, by `headway calibrate`, or else by CCVR here and now.
    """
    run = replace(subject.saved.run, task=subject.task)
    files = {"calibrated": run.path / "model.safetensors"} if run.summary.get("calibrated") else {}
    files |= {path.stem: path for path in sorted((run.path / "calibrated").glob("*.safetensors"))}
    nets = {name: run._net(path) for name, path in files.items()}
    note = ""
    if not nets and (pair := calibrated(subject, make=True)):
        nets, note = {pair.name: pair.after}, f" Calibration: {pair.source}."
    return {name: rows_of(net.shared_head).norm(dim=1).cpu() for name, net in nets.items()}, note


def classifier_figure(
    counts: Tensor,
    local: Tensor,
    whole: dict[str, Tensor],
    shown: list[WatchedClassifiers],
    ids: list[str],
    names: list[str],
) -> Figure:
    heights = [3.0, *([2.6] if shown else []), *([2.0] if whole else [])]
    figure = style.blank(12, 1.68 * sum(heights) if len(heights) > 1 else 5)
    top, *below = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    left, right = top.subplots(1, 2)
    style.named_heat_map(
        top, left, counts, names, ids, "label distribution", "training samples", "{:.0f}", cmap="Blues"
    )
    style.named_heat_map(top, right, local, names, ids, "weight norms after local training", "||w||")
    for axes in (left, right):
        axes.set(xlabel="class", ylabel="client")
    if shown:
        middle = below.pop(0)
        for axes, row in zip(middle.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            style.named_heat_map(
                middle, axes, row.norms, names, row.clients, f"weight norms, round {row.round}", "||w||"
            )
            axes.set(xlabel="class", ylabel="client")
    if whole:
        axes = below[0].subplots()
        marks = zip("os^Dv<>P", (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE) * 2, strict=True)
        for (name, v), (mark, colour) in zip(whole.items(), marks, strict=False):
            label = {"global": "before calibration" if len(whole) > 1 else "global model"}.get(name, name)
            axes.plot(range(len(v)), v, marker=mark, color=colour, markersize=5, label=style.label(label, 40))
        style.plain_axes(axes)
        style.class_ticks(axes.xaxis, names)
        style.from_zero(axes)
        axes.set(xlabel="class", ylabel="||w||")
        axes.set_title("global classifier", fontsize=10)
        axes.legend(fontsize=9, frameon=False)
    return figure
