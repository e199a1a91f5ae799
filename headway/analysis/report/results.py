"""Learning curves, and what every client and class gets."""

from __future__ import annotations

from collections.abc import Sequence

from headway.analysis.report.charts import BANDS, Series, Strip, coinciding, curves, gains, strips
from headway.analysis.report.gather import Gathered, Group, finite
from headway.analysis.report.markup import Markup, el, join
from headway.analysis.report.measures import POINTS, Change, Point, changes, curve, reached, spread, targets_of, thin
from headway.analysis.report.parts import (
    clients_text,
    counted,
    figure,
    index_of,
    listed,
    name_of,
    percent,
    section,
    several_seeds,
    signed,
)
from headway.analysis.report.stats import same_data
from headway.analysis.report.svg import key

BEFORE = " Rounds are before calibration."
ROWS = 12  # of a chart's table: enough to read the shape off


def switches(g: Gathered) -> Markup:
    """A box for every recipe; page.js shows them, as they do nothing without it."""
    if len(g.groups) < 2:
        return Markup()
    boxes = [
        el("label", el("input", type="checkbox", checked=True, data_switch=x.key), key(index_of(x)), el("bdi", x.label))
        for x in g.groups
    ]
    both = [el("button", word, type="button", data_all=value) for word, value in (("all", "1"), ("none", "0"))]
    return el("fieldset", el("legend", "Recipes shown in all charts"), *boxes, *both, cls="switches", hidden=True)


def learning(g: Gathered) -> Markup:
    drawn = [
        curve_figure(g, "global_acc", "Global accuracy", "curve-global", "of the global model on the test set"),
        curve_figure(
            g,
            "personal_acc",
            "Personal accuracy",
            "curve-personal",
            "of each client's model as it stands on receiving the global one, before training: mean over clients",
        ),
        curve_figure(g, "train_loss", "Training loss", "curve-loss", "", unit="loss"),
        to_target(g),
    ]
    found = [f for f in drawn if f]
    nothing = el("p", "No round was evaluated.") if not found else ""
    return section("curves", "Learning curves", switches(g), el("div", *found, cls="pair"), nothing)


def curve_figure(g: Gathered, column: str, title: str, name: str, what: str, unit: str = "%") -> Markup:
    found = {x.key: curve(x, column) for x in g.groups}
    able = [x for x in g.groups if found[x.key]]
    if not able:
        return Markup()
    share = unit == "%"
    after = {x.key: x.calibrated if column == "global_acc" else None for x in able}
    series = [
        Series(
            index_of(x), x.key, [_spot(p, 100 if share else 1) for p in thin(found[x.key], POINTS)],
            None if after[x.key] is None else 100 * (after[x.key] or 0.0),
        )
        for x in able
    ]  # fmt: skip
    bands = any(len(x.seeds) > 1 for x in able)
    around = ", the band spans the lowest to the highest" if len(able) <= BANDS else ""
    kinds = "; losses of different recipes may differ in kind" if len(able) > 1 else ""
    note = f"Accuracy {what}." if share else f"Mean of the clients' losses over their local training{kinds}."
    note += f" The line is the mean over seeds{around}." if bands else ""
    calibrated = [f"{x.label} {percent(after[x.key])} %" for x in able if after[x.key] is not None]
    note += " The diamond at the end is the accuracy after calibration; the line is before it." if calibrated else ""
    note += " Lines that coincide are dashes over one another." if any(coinciding(series).values()) else ""
    missing: dict[str, list[str]] = {}
    for x in g.groups:
        if x not in able:
            missing.setdefault(why_missing(x, column), []).append(x.label)
    note += "".join(f" Not drawn, as {why}: {listed(labels)}." for why, labels in missing.items())

    def shown(value: float | None) -> str:
        return percent(value) if share else "n/a" if value is None else f"{value:.4g}"

    last = [f"{x.label} {shown(found[x.key][-1].mean)}{' %' if share else ''}" for x in able]
    about = f"{title} against rounds for {counted(len(able), 'recipe')}. In the last round: {'; '.join(last)}."
    about += f" After calibration: {'; '.join(calibrated)}." if calibrated else ""
    rounds = thin(sorted({p.round for x in able for p in found[x.key]}), ROWS)
    at = {x.key: {p.round: p.mean for p in found[x.key]} for x in able}
    rows: list[list[object]] = [[t, *(shown(at[x.key].get(t)) for x in able)] for t in rounds]
    rows += [["calibrated", *(shown(after[x.key]) for x in able)]] if calibrated else []
    drawing = curves(
        name, title, about, series, "round", "accuracy, %" if share else "loss", top=100.0 if share else None
    )
    return figure(title, drawing, note=note, groups=able, header=["round", *(name_of(x) for x in able)], rows=rows)


def why_missing(x: Group, column: str) -> str:
    """Why a recipe has no point in the chart of this column."""
    if column == "train_loss":
        return "the loss was never a finite number"
    rows = [row for run in x.runs for row in run.rows]
    if all(finite(row.get(score)) is None for row in rows for score in ("global_acc", "personal_acc")):
        return "no round was evaluated"
    return "there is no global model" if column == "global_acc" else "clients have no test data"


def _spot(p: Point, scale: float = 100.0) -> tuple[float, float, float, float]:
    return (float(p.round), scale * p.mean, scale * p.low, scale * p.high)


def to_target(g: Gathered) -> Markup:
    """Rounds until a global accuracy was first reached, on a logarithmic axis."""
    targets = targets_of(g.groups)
    costs = {x.key: [r for t in targets if (r := reached(x, t))] for x in g.groups}
    able = [x for x in g.groups if costs[x.key]]
    if not able:
        return Markup()
    series = [
        Series(index_of(x), x.key, [(r.rounds, 100 * r.target, 100 * r.target, 100 * r.target) for r in costs[x.key]])
        for x in able
    ]
    title = "Rounds to a target"
    about = (
        "Rounds until each target accuracy was first reached, a logarithmic axis; further left is faster. "
        + " ".join(
            f"{x.label}: {', '.join(f'{r.target:.0%} after {r.rounds:.3g}' for r in costs[x.key])}." for x in able
        )
    )
    drawing = curves(
        "targets", title, about, series, "rounds (logarithmic)", "global accuracy reached, %", log=True, dots=True
    )
    note = (
        "Rounds until the global accuracy was first reached; further left is faster. Mean over the seeds "
        "that reached it."
    )
    note += BEFORE if any(x.calibrated is not None for x in able) else ""
    by = {x.key: {r.target: r for r in costs[x.key]} for x in able}
    rows = [[f"{t:.0%}", *(f"{by[x.key][t].rounds:.3g}" if t in by[x.key] else "never" for x in able)] for t in targets]
    return figure(title, drawing, note=note, groups=able, header=["target", *(name_of(x) for x in able)], rows=rows)


# ---- clients
def clients(g: Gathered) -> Markup:
    able = [x for x in g.groups if x.clients()]
    if not able:
        return section(
            "clients",
            "Clients",
            el("p", "No run has personal figures: clients have no test data, or no run has ended."),
        )
    parts: list[object] = [el("div", distribution(able), by_class(g), cls="pair")]
    local = g.local
    others = [x for x in (g.base, local) if x is not None and x.clients()]
    if len(able) > 1:
        if local is None:
            parts.append(
                el(
                    "p",
                    "Local training is not among the runs, so gains are measured against ",
                    name_of(g.base),
                    " only; add the recipe ",
                    el("code", "local"),
                    " to see who would do better alone.",
                    cls="note",
                )
            )
        for other in dict.fromkeys(others):
            parts.append(gain_figures(able, other, local))
    return section("clients", "Clients one by one", *parts)


def distribution(able: Sequence[Group]) -> Markup:
    found = {x.key: sorted(100 * v for v in x.clients().values()) for x in able}
    spreads = {k: spread(v) for k, v in found.items()}
    title = "Personal accuracy of clients"
    rows = [Strip(index_of(x), x.key, x.label, found[x.key], spreads[x.key]) for x in able]
    about = "Distribution over clients. " + " ".join(
        f"{x.label}: median {spreads[x.key].median:.1f} %, least {spreads[x.key].least:.1f} %." for x in able
    )
    note = (
        "A dot is a client (under one seed); the box holds the middle half, the bar is the median, the line spans all."
    )
    numbers = [
        [name_of(x), s.n, *(f"{v:.2f}" for v in (s.mean, s.least, s.lower, s.median, s.upper, s.most))]
        for x in able
        for s in (spreads[x.key],)
    ]
    several = any(several_seeds(x.clients()) for x in able)
    unit_name = "pairs of client and seed" if several else "clients"
    header = ["recipe", unit_name, "mean", "least", "lower quarter", "median", "upper quarter", "most"]
    drawing = strips("clients-spread", title, about, rows, "personal accuracy, %")
    return figure(title, drawing, note=note, header=header, rows=numbers)


def by_class(g: Gathered) -> Markup:
    """How evenly the global model serves the classes."""
    found = {x.key: class_accuracies(x) for x in g.groups}
    able = [x for x in g.groups if found[x.key]]
    if not able:
        return Markup()
    title = "Global accuracy of classes"
    rows = [
        Strip(index_of(x), x.key, x.label, [v for _, v in found[x.key]], spread([v for _, v in found[x.key]]))
        for x in able
    ]
    worst = {x.key: min(found[x.key], key=lambda pair: pair[1]) for x in able}
    held = next((run.held for x in able for run in x.runs if run.held), None)
    name = held.name if held else str
    about = "Distribution over classes. " + " ".join(
        f"{x.label}: least {worst[x.key][1]:.1f} %, class {name(worst[x.key][0])}." for x in able
    )
    note = "A dot is a class (mean over seeds): the accuracy of the final global model on its test samples."
    at = {x.key: dict(found[x.key]) for x in able}
    classes = thin(sorted({c for x in able for c, _ in found[x.key]}), 40)
    numbers = [[name(c), *(f"{at[x.key][c]:.2f}" if c in at[x.key] else "n/a" for x in able)] for c in classes]
    drawing = strips("classes-spread", title, about, rows, "accuracy of a class, %")
    return figure(title, drawing, note=note, header=["class", *(name_of(x) for x in able)], rows=numbers)


def class_accuracies(x: Group) -> list[tuple[int, float]]:
    """(class, accuracy in percent, mean over seeds) for the classes that have test samples."""
    per_run = [(run.summary or {}).get("per_class") or [] for run in x.counted]
    found = []
    for c in range(max((len(row) for row in per_run), default=0)):
        known = [v for row in per_run if c < len(row) and (v := finite(row[c])) is not None]
        if known:
            found.append((c, 100 * sum(known) / len(known)))
    return found


def gain_figures(able: Sequence[Group], other: Group, local: Group | None) -> Markup:
    """Who gains and who loses when the recipe takes the place of another."""
    drawn = []
    for x in able:
        if x is other or not same_data(x, other):
            continue
        if found := changes(x, other):
            drawn.append(gain_figure(x, other, found))
    if not drawn:
        return Markup()
    what = "training alone" if other is local else "the reference"
    intro = el(
        "p",
        f"Each client's personal accuracy minus what it has under {what}, ",
        name_of(other),
        "; below each bar the samples and classes it holds.",
        cls="note",
    )
    return join([el("h3", "Who gains and who loses against ", name_of(other)), intro, el("div", *drawn, cls="pair")])


def gain_figure(x: Group, other: Group, found: Sequence[Change]) -> Markup:
    up, down = sum(c.difference > 1e-12 for c in found), sum(c.difference < -1e-12 for c in found)
    mean = 100 * sum(c.difference for c in found) / len(found)
    title = f"{x.label} against {other.label}"
    everybody = clients_text([(c.seed, c.client) for c in found])
    about = (
        f"{up} of {everybody} gain, {down} lose; mean {signed(mean, 2)} points, from "
        f"{signed(100 * found[0].difference, 1)} to {signed(100 * found[-1].difference, 1)}."
    )
    ends = list(dict.fromkeys([*found[: ROWS // 2], *found[-(ROWS // 2) :]]))
    rows = [[c.client, c.seed, signed(100 * c.difference, 2), _known(c.samples), _known(c.classes)] for c in ends]
    drawing = gains(f"gain-{x.key}-{other.key}", title, about, found)
    shown = figure(title, drawing, note=about, header=["client", "seed", "points", "samples", "classes"], rows=rows)
    return el("div", shown, data_recipe=x.key)


def _known(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"
