"""Communication and time: what a recipe sends and takes, and what it costs to reach an accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from headway.analysis.report.charts import Series, curves
from headway.analysis.report.gather import Entry, Gathered, finite
from headway.analysis.report.markup import Markup, cell, el, join, table
from headway.analysis.report.measures import POINTS, Point, Reached, curve, reached, targets_of, thin
from headway.analysis.report.parts import figure, index_of, labelled, name_of, percent, section, with_spread

WIDE = 20  # totals this many times apart call for a logarithmic axis
COLUMNS = 4  # targets in a table: the highest


def cost(g: Gathered) -> Markup:
    charts = [
        against(g, "megabytes", "Accuracy against megabytes", "MB", "megabytes sent, up and down"),
        against(g, "seconds", "Accuracy against time", "s", "seconds"),
    ]
    drawn = [chart for chart in charts if chart]
    return section(
        "cost",
        "Communication and time",
        traffic_table(g),
        el("div", *drawn, cls="pair") if drawn else "",
        target_tables(g),
    )


def traffic_table(g: Gathered) -> Markup:
    rows = []
    for x in g.groups:
        per = [
            _mean([(finite(r.get(f"bytes_{way}")) or 0.0) / 1e6 for run in x.runs for r in run.rows])
            for way in ("up", "down")
        ]
        total = [_mean([sent(run, way) for run in x.counted]) for way in ("up", "down")]
        took = _mean([s for run in x.runs for s in run.times.values()])
        cells = [cell(f"{v:,.2f}", float(v)) for v in (*per, *total)]
        whole = x.mean("seconds") or 0.0
        rows.append([
            labelled(x), *cells, cell(f"{took:,.3f}", float(took)),
            cell(with_spread(whole, x.std("seconds"), digits=1), float(whole)),
        ])  # fmt: skip
    header = [
        "recipe",
        "MB up a round",
        "MB down a round",
        "MB up in all",
        "MB down in all",
        "seconds a round",
        "seconds in all",
    ]
    note = (
        "Means over seeds, all clients of a round together; totals include what a calibration asks at the end. "
        "Seconds are wall time on the machine that ran it and depend on its load."
    )
    return join([table("What is sent, and how long it takes", header, rows, cls="sortable"), el("p", note, cls="note")])


def sent(run: Entry, way: str) -> float:
    """Megabytes one way, from the first round to the last question."""
    rows = sum(finite(r.get(f"bytes_{way}")) or 0.0 for r in run.rows)
    return (rows + (finite((run.summary or {}).get(f"survey_bytes_{way}")) or 0.0)) / 1e6


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def against(g: Gathered, what: str, title: str, unit: str, axis: str) -> Markup:
    """Global accuracy over what was spent until then."""

    def spent(p: Point) -> float:
        return float(getattr(p, what))

    found = {x.key: [p for p in curve(x, "global_acc") if spent(p) > 0] for x in g.groups}
    able = [x for x in g.groups if found[x.key]]
    if not able:
        return Markup()
    ends = [spent(found[x.key][-1]) for x in able]
    log = max(ends) > WIDE * min(ends)
    series = [
        Series(
            index_of(x),
            x.key,
            [(spent(p), 100 * p.mean, 100 * p.low, 100 * p.high) for p in thin(found[x.key], POINTS)],
        )
        for x in able
    ]
    last = [
        f"{x.label} {percent(found[x.key][-1].mean, 1)} % after {spent(found[x.key][-1]):,.4g} {unit}" for x in able
    ]
    about = f"Global accuracy against {axis}. At the end: {'; '.join(last)}."
    drawing = curves(
        what, title, about, series, axis + (" (logarithmic)" if log else ""), "global accuracy, %", log=log
    )
    rows = [[name_of(x), p.round, f"{spent(p):,.4g}", percent(p.mean)] for x in able for p in thin(found[x.key], 5)]
    note = f"Global accuracy for the {axis} until then; further left is {'cheaper' if unit == 'MB' else 'faster'}."
    note += " Rounds are before calibration." if any(x.calibrated is not None for x in able) else ""
    return figure(title, drawing, note=note, groups=able, header=["recipe", "round", unit, "global %"], rows=rows)


def target_tables(g: Gathered) -> Markup:
    """Rounds, megabytes and seconds until each target, a table each."""
    targets = targets_of(g.groups)[-COLUMNS:]
    able = [x for x in g.groups if any(reached(x, t) for t in targets)]
    if not able:
        return Markup()
    costs = {x.key: [reached(x, t) for t in targets] for x in able}
    made = []
    for title, what in (("Rounds", "rounds"), ("Megabytes", "megabytes"), ("Seconds", "seconds")):
        rows = [[name_of(x), *(_cost(r, what) for r in costs[x.key])] for x in able]
        made.append(
            table(f"{title} to a global accuracy of", ["recipe", *(f"{t:.0%}" for t in targets)], rows, cls="sortable")
        )
    note = "Means over the seeds that reached it; in brackets how many did, where not all."
    note += " Rounds are before calibration." if any(x.calibrated is not None for x in able) else ""
    return join([el("div", *made, cls="three"), el("p", note, cls="note")])


def _cost(r: Reached | None, what: str) -> Markup:
    if r is None:
        return cell("never", 1e12)
    value = float(getattr(r, what))
    some = f" [{r.seeds}/{r.of}]" if r.seeds < r.of else ""
    return cell(f"{value:,.0f}{some}" if value >= 1000 else f"{value:.3g}{some}", value)
