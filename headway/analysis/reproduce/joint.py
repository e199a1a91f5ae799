"""All runs of a figure in one picture, as its paper draws them: panels of lines from the runs' numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from headway.analysis.diagnostics.curves import ENOUGH, number, smooth, watched_rows
from headway.analysis.diagnostics.curves import curve as points_of
from headway.analysis.diagnostics.diagnose import Results
from headway.analysis.diagnostics.finding import Finding
from headway.analysis.plotting.style import COLOURS, MARKERS, blank, label
from headway.analysis.reproduce.plan import Cell, partition_of
from headway.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = list[tuple[Any, float]]  # (x, y); an x that is text is a place in the order of its coming
STYLES = ("-", "--", "-.", ":")
DIMENSION = r"\bd=(\d+)"
VARIED = ("method", "partition", "data", "epochs")


def changed(ran: Any, paper: Any) -> str:
    """What was run, and what it stands for where --set changed it: scenes of the paper stay apart."""
    return f"{ran}" if ran == paper else f"{ran} for {paper}"


@dataclass(frozen=True)
class Curve:
    """One run of a figure, and what was seen in it."""

    cell: Cell
    run: Run
    results: Results
    acc: float | None = None  # percent, measured as the paper measures
    stages: Mapping[str, float] = field(default_factory=dict)  # personal accuracy after each, where there are stages

    @property
    def method(self) -> str:
        return self.cell.row.method

    @property
    def partition(self) -> str:
        """As the paper writes it, without the guards of its code."""
        row, ran = self.cell.row, self.cell.settings.partition
        return row.partition if ran == partition_of(row) else changed(ran, row.partition)

    @property
    def data(self) -> str:
        return changed(self.cell.settings.data, self.cell.row.dataset)

    @property
    def epochs(self) -> str:
        return f"epochs={changed(self.cell.settings.epochs, self.cell.row.epochs)}"

    @property
    def watched(self) -> list[dict[str, Any]]:
        return watched_rows(self.run.path / "watch.jsonl")

    def found(self, diagnostic: str) -> Finding | None:
        return next((f for f in self.results.findings if f.name == diagnostic), None)

    def summary(self, diagnostic: str, key: str) -> float | None:
        finding = self.found(diagnostic)
        value = finding.summary.get(key) if finding else None
        return float(value) if number(value) else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    smoothed: bool = False
    dots: bool = False  # points that no line joins


def names(curves: Sequence[Curve], always: tuple[str, ...] = ()) -> list[str]:
    """What tells the runs apart; the method where nothing does."""
    kept = [key for key in VARIED if key in always or len({getattr(c, key) for c in curves}) > 1] or ["method"]
    return [", ".join(getattr(c, key) for key in kept) for c in curves]


# ---- the kinds of panels
def over_rounds(curves: Sequence[Curve], smoothed: bool = False) -> list[Panel]:
    """Accuracy over rounds: a panel a data set, number of epochs and, for several methods, partition."""
    methods = len({c.method for c in curves})
    groups: dict[tuple[str, ...], list[Curve]] = {}
    for c in curves:
        groups.setdefault((c.data, c.epochs, c.partition if methods > 1 else ""), []).append(c)
    return [
        Panel(", ".join(filter(None, key)), "round", "test accuracy, %", accuracies(group), smoothed)
        for key, group in groups.items()
    ]


def accuracies(curves: Sequence[Curve]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for name, c in zip(names(curves), curves, strict=True):
        shared = c.cell.row.metric != "pooled_local_acc" and points_of(c.run.metrics, "global_acc")
        points = shared or points_of(c.run.metrics, "pooled_local_acc")
        lines[name if shared else f"{name} (on clients' tests)"] = [(t, 100 * v) for t, v in points]
        if after := c.run.summary.get("calibrated"):
            lines[f"{name}, calibrated"] = [(c.run.summary["rounds"], 100 * after["after"])]
    return lines


def watched(curves: Sequence[Curve], measures: Mapping[str, tuple[str, Mapping[str, str]]]) -> list[Panel]:
    """A panel a measure: title -> what its axis says and {column: what is said of it}; `a-b` is a difference."""
    panels = []
    for title, (says, columns) in measures.items():
        lines = {}
        for name, c in zip(names(curves), curves, strict=True):
            for column, more in columns.items():
                rows = [{"round": row["round"], "value": value_of(row, column)} for row in c.watched]
                if points := points_of(rows, "value"):
                    lines[name + more] = points
        panels.append(Panel(title, "round", says, lines))
    return panels


def value_of(row: Mapping[str, Any], column: str) -> Any:
    parts: list[Any] = [row.get(part) for part in column.split("-")]
    return parts[0] - sum(parts[1:]) if all(map(number, parts)) else None


def gap(what: str, curves: Sequence[Curve]) -> list[Panel]:
    title = f"{what} norms: local on own classes minus global"
    return watched(curves, {title: ("difference of mean norms", {f"{what}_id-{what}_global": ""})})


def alignment(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 5 of FedETF, on raw features and on what the classifier sees where that is another space."""
    cosines = {"consistency": "", "consistency_seen": ", projected"}
    errors = {"nc_error": "", "nc_error_seen": ", projected"}
    return watched(curves, {
        "prototype consistency": ("mean cosine between clients", cosines),
        "neural collapse": ("neural-collapse error", errors),
    })  # fmt: skip


def against(
    curves: Sequence[Curve], pattern: str, x: str, measures: Mapping[str, Callable[[Curve], float | None]]
) -> list[Panel]:
    """A panel a measure against a number in the method's or the partition's name; a line a remaining difference."""
    panels = []
    for says, measure in measures.items():
        lines: dict[str, Line] = {}
        for c in curves:
            own = {key: getattr(c, key) for key in ("method", "partition")}
            found = {key: place[1] for key, text in own.items() if (place := re.search(pattern, text))}
            value = measure(c)
            if found and value is not None:
                key, at = next(iter(found.items()))
                rest = [text for other, text in own.items() if other != key]
                lines.setdefault(", ".join(rest), []).append((at, value))
        panels.append(Panel(says, x, says, lines))
    return panels


def accuracy(c: Curve) -> float | None:
    return c.acc


def summary_of(diagnostic: str, key: str) -> Callable[[Curve], float | None]:
    return lambda c: c.summary(diagnostic, key)


def dimension(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 6 of FedETF: (a) by the dimension of the ETF, (b) over Algorithm 2's stages, beside FedAvg's level."""
    measures = {
        "accuracy, %": accuracy, "neural-collapse error, features": summary_of("collapse", "error"),
        "neural-collapse error, projected": summary_of("collapse", "error_seen"),
    }  # fmt: skip
    stages = {
        place[0]: [(stage, 100 * acc) for stage, acc in c.stages.items()]
        for c in curves
        if (place := re.search(DIMENSION, c.method))
    }
    order = next((list(c.stages) for c in curves if c.stages), [])
    for c in curves:
        own = c.run.summary.get("personal")  # after one more local training, as the paper finetunes what is not FedETF
        if order and own and not re.search(DIMENSION, c.method):
            stages[f"{c.method}, finetuned"] = [(stage, 100 * own["mean"]) for stage in order]
    panels = against(curves, DIMENSION, "dimension of the ETF", measures)
    return [*panels, Panel("personalisation, stage by stage", "stage", "mean personal accuracy, %", stages)]


def alpha(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 3 of FedTC."""
    return against(curves, r"^dir\(([^,)]+)", "alpha", {"accuracy, %": accuracy})


def penalty(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 4 of FedFN: (a) accuracy, (b) feature norms, by mu; and their gap over rounds in the first partition."""
    mu, first = r"\bmu=([^,)]+)", curves[0].partition
    (panel,) = against(curves, mu, "mu", {"accuracy, %": accuracy})
    sides = {side: against(curves, mu, "mu", {side: summary_of("norms", f"feature_{key}")})[0].lines
             for side, key in (("local", "id"), ("global", "global"))}  # fmt: skip
    norms = {f"{name}, {side}": line for side, lines in sides.items() for name, line in lines.items()}
    (over,) = gap("feature", [c for c in curves if c.partition in (first, "iid")])
    return [panel, Panel("feature norms at the end", "mu", "mean norm", norms), over]


def layers(curves: Sequence[Curve]) -> list[Panel]:
    """Figures 2 and 11 of CCVR."""
    lines = {}
    for name, c in zip(names(curves), curves, strict=True):
        if finding := c.found("cka"):
            lines[name] = [
                (row["layer"], row["mean_cka"]) for row in finding.tables["layers"] if number(row["mean_cka"])
            ]
    return [Panel("similarity of clients' layers", "layer, from input to output", "mean CKA over pairs", lines)]


def separability(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 6 of CCVR."""
    lines: dict[str, Line] = {}
    for name, c in zip(names(curves), curves, strict=True):
        sw, gain = c.summary("separability", "sw"), c.summary("separability", "oracle_gain")
        if sw is not None and gain is not None:
            lines[name] = [(sw, 100 * gain)]
    says = "gain of the oracle's classifier, points"
    return [Panel("separability and gain", "mean sliced Wasserstein distance of classes", says, lines, dots=True)]


def class_norms(curves: Sequence[Curve]) -> list[Panel]:
    """Figures 3, 10 and 12 of CCVR: the global classifier's norms class by class; how local ones follow the labels."""
    by_run: dict[str, dict[str, Line]] = {}
    for name, c in zip(names(curves), curves, strict=True):
        finding = c.found("classifier_norms")
        rows = finding.tables.get("global", ()) if finding else ()
        keys = [key for key in (rows[0] if rows else ()) if key != "class"]
        by_run[name] = {key: [(str(row["class"]), row[key]) for row in rows if number(row[key])] for key in keys}
    if any(len(lines) > 1 for lines in by_run.values()):  # before and after calibration
        panels = [Panel(name, "class", "||w||", lines) for name, lines in by_run.items()]
    else:
        whole = {name: line for name, lines in by_run.items() for line in lines.values()}
        panels = [Panel("global classifier", "class", "||w||", whole)]
    return [*panels, *summaries(curves, "classifier_norms", ("correlation",))]


def summaries(curves: Sequence[Curve], diagnostic: str, keys: Sequence[str]) -> list[Panel]:
    """A panel a figure of a diagnostic's summary, run beside run."""
    labels = names(curves)
    found = {key: [(n, v) for n, c in zip(labels, curves, strict=True) if (v := c.summary(diagnostic, key)) is not None]
             for key in keys}  # fmt: skip
    return [
        Panel(key.replace("_", " "), "", key.replace("_", " "), {"": line}, dots=True) for key, line in found.items()
    ]


def classifiers(curves: Sequence[Curve]) -> list[Panel]:
    """Figure 1 of FedETF: generalisation and agreement of classifiers under skew."""
    accs: Line = [(n, c.acc) for n, c in zip(names(curves), curves, strict=True) if c.acc is not None]
    own = summaries(curves, "consistency", ("classifier_cosine", "consistency"))
    return [Panel("accuracy, %", "", "accuracy, %", {"": accs}, dots=True), *own]


JOINTS: dict[str, Callable[[Sequence[Curve]], list[Panel]]] = {
    "smoothed": partial(over_rounds, smoothed=True),
    "alignment": alignment,
    "feature_gap": partial(gap, "feature"),
    "weight_gap": partial(gap, "weight"),
    "dimension": dimension,
    "alpha": alpha,
    "penalty": penalty,
    "layers": layers,
    "separability": separability,
    "class_norms": class_norms,
    "classifiers": classifiers,
    "labels": partial(summaries, diagnostic="labels", keys=("js_divergence", "effective_classes")),
    "four_factors": partial(
        summaries, diagnostic="four_factors", keys=("weight_similarity", "inter_class", "intra_class", "alignment")
    ),
}


# ---- drawing
def finding_of(name: str, title: str, about: str, panels: Sequence[Panel]) -> Finding:
    """The panels as a finding: one table of all points, the last of every line as its figures to remember."""
    whole = [(panel, {name: line for name, line in panel.lines.items() if line}) for panel in panels]
    shown = [(panel, lines) for panel, lines in whole if lines]
    rows = [
        {"panel": panel.title, "line": line, "x": x, "y": y}
        | ({"smoothed": float(s)} if panel.smoothed else {})
        for panel, lines in shown for line, points in lines.items()
        for (x, y), s in zip(points, smooth([y for _, y in points]), strict=True)
    ]  # fmt: skip
    last = {": ".join(filter(None, (p.title, line))): v[-1][1] for p, lines in shown for line, v in lines.items()}
    alt = "; ".join(f"{p.title}: {', '.join(filter(None, lines)) or 'one line'}" for p, lines in shown)
    return Finding(
        name,
        title,
        about,
        last,
        {"points": rows},
        alt or "nothing was measured",
        partial(draw, shown) if shown else None,
    )


def draw(shown: Sequence[tuple[Panel, dict[str, Line]]]) -> Figure:
    """Panels, three in a row at most; a line keeps its colour in all of them."""
    from matplotlib.ticker import MaxNLocator

    columns = 2 if len(shown) == 4 else min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure = blank(5.6 * columns + 1.2, 4.0 * rows)
    colours = {name: i for i, name in enumerate(dict.fromkeys(name for _, lines in shown for name in lines))}
    for place, (panel, lines) in enumerate(shown, 1):
        axes = figure.add_subplot(rows, columns, place)
        for name, points in lines.items():
            plot(axes, panel, name, points, colours[name])
        axes.set_title(label(panel.title, 60), fontsize=10)
        axes.set(xlabel=panel.x, ylabel=panel.y)
        places = [x for line in lines.values() for x, _ in line if isinstance(x, str)]
        if sum(len(x) for x in dict.fromkeys(places)) > 50:
            axes.tick_params(axis="x", labelrotation=90, labelsize=8)
        if panel.x == "round":
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.ticklabel_format(useOffset=False, axis="y" if places else "both")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if any(lines):
            axes.legend(fontsize=8 if len(lines) <= 10 else 6, frameon=False)
    return figure


def plot(axes: Any, panel: Panel, name: str, points: Line, i: int) -> None:
    """One line; a smoothed one bold over its faint values."""
    x, y = [label(x, 30) if isinstance(x, str) else x for x, _ in points], [y for _, y in points]
    style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "label": label(name, 60) if name else None}
    marker, dash = MARKERS[i // len(COLOURS) % len(MARKERS)], STYLES[i % len(STYLES)]  # one shows through another
    if panel.dots:
        axes.plot(x, y, linestyle="", marker=MARKERS[i % len(MARKERS)], markersize=7, alpha=0.8, **style)
    elif panel.smoothed and len(points) >= ENOUGH:
        axes.plot(x, y, linewidth=0.8, alpha=0.35, color=style["color"])
        axes.plot(x, smooth(y), dash, linewidth=2, **style)
    else:
        axes.plot(x, y, dash, linewidth=1.4, marker=marker if len(points) < ENOUGH * 2 else "", markersize=4, **style)
