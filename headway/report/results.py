"""Learning curves, clients one by one, communication and time."""

from __future__ import annotations

from collections.abc import Sequence

from headway.report.charts import Series, Strip, curves, gains, strips
from headway.report.gather import Gathered, Group
from headway.report.markup import Markup, cell, el, join, table
from headway.report.measures import POINTS, Change, Point, changes, curve, reached, spread, targets_of, thin
from headway.report.parts import counted, figure, index_of, labelled, name_of, percent, section, with_spread
from headway.report.stats import same_data
from headway.report.svg import key

ROWS = 12  # of a chart's table: enough to read the shape off
MOST_SEEN = 20  # switches come with a button for all of them when they are more than a handful
WIDE = 20  # totals this many times apart call for a logarithmic axis


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
        curve_figure(g, "personal_acc", "Personal accuracy", "curve-personal", "of each client’s model as it stands on receiving the global one, before training: mean over clients"),
        to_target(g),
    ]
    found = [f for f in drawn if f]
    nothing = el("p", "No round was evaluated.") if not found else ""
    return section("curves", "Learning curves", switches(g), el("div", *found, cls="pair"), nothing)


def curve_figure(g: Gathered, column: str, title: str, name: str, what: str) -> Markup:
    found = {x.key: curve(x, column) for x in g.groups}
    able = [x for x in g.groups if found[x.key]]
    if not able:
        return Markup()
    series = [Series(index_of(x), x.key, [_spot(p) for p in thin(found[x.key], POINTS)]) for x in able]
    bands = any(len(x.seeds) > 1 for x in able)
    note = f"Accuracy {what}." + (" The line is the mean over seeds, the band spans the lowest to the highest." if bands else "")
    if lacking := [x.label for x in g.groups if x not in able]:
        note += f" Without such a model: {', '.join(lacking)}."
    last = [f"{x.label} {percent(found[x.key][-1].mean, 1)} %" for x in able]
    about = f"Accuracy against rounds for {counted(len(able), 'recipe')}. In the last round: {'; '.join(last)}."
    rounds = thin(sorted({p.round for x in able for p in found[x.key]}), ROWS)
    at = {x.key: {p.round: p.mean for p in found[x.key]} for x in able}
    rows = [[t, *(percent(at[x.key].get(t)) for x in able)] for t in rounds]
    drawing = curves(name, title, about, series, "round", "accuracy, %")
    return figure(title, drawing, note=note, groups=able, header=["round", *(name_of(x) for x in able)], rows=rows)


def _spot(p: Point) -> tuple[float, float, float, float]:
    return (float(p.round), 100 * p.mean, 100 * p.low, 100 * p.high)


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
    about = "Rounds until each target accuracy was first reached, a logarithmic axis; further left is faster. " + " ".join(
        f"{x.label}: {', '.join(f'{r.target:.0%} after {r.rounds:.3g}' for r in costs[x.key])}." for x in able
    )
    drawing = curves("targets", title, about, series, "rounds (logarithmic)", "global accuracy reached, %", log=True, dots=True)
    note = "Rounds until the global accuracy was first reached; further left is faster. Mean over the seeds that reached it."
    by = {x.key: {r.target: r for r in costs[x.key]} for x in able}
    rows = [[f"{t:.0%}", *(f"{by[x.key][t].rounds:.3g}" if t in by[x.key] else "never" for x in able)] for t in targets]
    return figure(title, drawing, note=note, groups=able, header=["target", *(name_of(x) for x in able)], rows=rows)


# ---- clients
def clients(g: Gathered) -> Markup:
    able = [x for x in g.groups if x.clients()]
    if not able:
        return section("clients", "Clients", el("p", "No run has personal figures: clients have no test data, or no run has ended."))
    parts: list[object] = [distribution(able)]
    local = g.local
    others = [x for x in (g.base, local) if x is not None and x.clients()]
    if len(able) > 1:
        if local is None:
            parts.append(el("p", "Local training is not among the runs, so gains are measured against ", name_of(g.base), " only; add the recipe ", el("code", "local"), " to see who would do better alone.", cls="note"))
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
    note = "A dot is a client (under one seed); the box holds the middle half, the bar is the median, the line spans all."
    numbers = [
        [name_of(x), s.n, *(f"{v:.2f}" for v in (s.mean, s.least, s.lower, s.median, s.upper, s.most))]
        for x in able
        for s in (spreads[x.key],)
    ]
    header = ["recipe", "clients", "mean", "least", "lower quarter", "median", "upper quarter", "most"]
    drawing = strips("clients-spread", title, about, rows, "personal accuracy, %")
    return el("div", figure(title, drawing, note=note, header=header, rows=numbers), cls="single")


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
    intro = el("p", f"Each client’s personal accuracy minus what it has under {what}, ", name_of(other), "; below each bar the samples and classes it holds.", cls="note")
    return join([el("h3", "Who gains and who loses against ", name_of(other)), intro, el("div", *drawn, cls="pair")])


def gain_figure(x: Group, other: Group, found: Sequence[Change]) -> Markup:
    up, down = sum(c.difference > 1e-12 for c in found), sum(c.difference < -1e-12 for c in found)
    mean = 100 * sum(c.difference for c in found) / len(found)
    title = f"{x.label} against {other.label}"
    about = f"{up} of {len(found)} clients gain, {down} lose; mean {mean:+.2f} points, from {100 * found[0].difference:+.1f} to {100 * found[-1].difference:+.1f}."
    ends = list(dict.fromkeys([*found[: ROWS // 2], *found[-(ROWS // 2) :]]))
    rows = [[c.client, c.seed, f"{100 * c.difference:+.2f}", _known(c.samples), _known(c.classes)] for c in ends]
    drawing = gains(f"gain-{x.key}-{other.key}", title, about, found)
    shown = figure(title, drawing, note=about, header=["client", "seed", "points", "samples", "classes"], rows=rows)
    return el("div", shown, data_recipe=x.key)


def _known(value: int | None) -> str:
    return "n/a" if value is None else f"{value:,}"


# ---- cost
def cost(g: Gathered) -> Markup:
    charts = el("div", against_megabytes(g), cls="single")
    return section("cost", "Communication and time", traffic_table(g), charts, target_table(g))


def traffic_table(g: Gathered) -> Markup:
    rows = []
    for x in g.groups:
        per = {way: _mean([r[f"bytes_{way}"] / 1e6 for run in x.runs for r in run.rows]) for way in ("up", "down")}
        total = {way: _mean([_total(run.rows, way) + (run.summary or {}).get(f"survey_bytes_{way}", 0) for run in x.counted]) / 1e6 for way in ("up", "down")}
        seconds = _mean([s for run in x.runs for s in run.times.values()])
        numbers = [per["up"], per["down"], total["up"], total["down"]]
        rows.append([
            labelled(x), *(cell(f"{v:,.2f}", float(v), cls="number") for v in numbers),
            cell(f"{seconds:,.3f}", float(seconds), cls="number"),
            cell(with_spread(x.mean("seconds"), x.std("seconds"), digits=1), float(x.mean("seconds") or 0), cls="number"),
        ])  # fmt: skip
    header = ["recipe", "MB up a round", "MB down a round", "MB up in all", "MB down in all", "seconds a round", "seconds in all"]
    note = "Means over seeds, all clients of a round together; totals include what a calibration asks at the end. Seconds are wall time on the machine that ran it and depend on its load."
    return join([table("Communication and time", header, rows, cls="sortable"), el("p", note, cls="note")])


def _total(rows: Sequence[object], way: str) -> float:
    return sum(r[f"bytes_{way}"] for r in rows)  # type: ignore[index]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def against_megabytes(g: Gathered) -> Markup:
    found = {x.key: [p for p in curve(x, "global_acc") if p.megabytes > 0] for x in g.groups}
    able = [x for x in g.groups if found[x.key]]
    if not able:
        return Markup()
    ends = [found[x.key][-1].megabytes for x in able]
    log = max(ends) > WIDE * min(ends)
    series = [
        Series(index_of(x), x.key, [(p.megabytes, *_spot(p)[1:]) for p in thin(found[x.key], POINTS)]) for x in able
    ]
    title = "Accuracy against megabytes"
    last = [f"{x.label} {percent(found[x.key][-1].mean, 1)} % after {found[x.key][-1].megabytes:,.1f} MB" for x in able]
    about = f"Global accuracy against megabytes sent up and down. At the end: {'; '.join(last)}."
    scale = "megabytes sent, up and down" + (" (logarithmic)" if log else "")
    drawing = curves("megabytes", title, about, series, scale, "global accuracy, %", log=log)
    rows = [[name_of(x), p.round, f"{p.megabytes:,.2f}", percent(p.mean)] for x in able for p in thin(found[x.key], 5)]
    note = "Global accuracy for what was sent until then; further left is cheaper."
    return figure(title, drawing, note=note, groups=able, header=["recipe", "round", "MB", "global %"], rows=rows)


def target_table(g: Gathered) -> Markup:
    """Rounds, megabytes and seconds until each target."""
    targets = targets_of(g.groups)
    if not targets:
        return Markup()
    rows = []
    for x in g.groups:
        cells: list[object] = [labelled(x)]
        for target in targets:
            r = reached(x, target)
            some = f" ({r.seeds} of {r.of} seeds)" if r and r.seeds < r.of else ""
            shown = f"{r.rounds:.3g} · {r.megabytes:,.4g} · {r.seconds:,.3g}{some}" if r else "never"
            cells.append(cell(shown, r.rounds if r else 1e9, cls="number"))
        rows.append(cells)
    caption = "Rounds · MB · seconds to a global accuracy"
    return table(caption, ["recipe", *(f"{t:.0%}" for t in targets)], rows, cls="sortable")
