"""The page's charts as SVG: curves, distributions, bars of gains and losses, who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headway.analysis.report.markup import Markup, el, join
from headway.analysis.report.measures import Change, Spread, thin
from headway.analysis.report.parts import several_seeds, signed
from headway.analysis.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    bounds,
    drawing,
    line,
    num,
    path,
    shortened,
    style_of,
    text,
    x_frame,
    y_frame,
)

DOTS = 90  # of a distribution
BANDS = 8  # recipes whose bands can still be distinguished
BARS = 120  # of gains and losses
SHADES = 7
COLUMNS, LINES = 100, 60  # clients and classes of the heat map
Spot = tuple[float, float, float, float]  # x, y, lowest y, highest y


@dataclass(frozen=True)
class Series:
    """One recipe's line."""

    index: int
    key: str
    spots: Sequence[Spot]
    after: float | None = None  # y of what follows the last spot: the accuracy after calibration


def coinciding(series: Sequence[Series]) -> dict[str, int]:
    """key -> how many lines of the very same points are drawn beneath; the first of them are drawn last."""
    beneath: dict[tuple[Spot, ...], int] = {}
    turns = {}
    for s in reversed(series):
        points = tuple((round(x, 9), round(y, 9), 0.0, 0.0) for x, y, *_ in s.spots)
        turns[s.key] = beneath.get(points, 0)
        beneath[points] = turns[s.key] + 1
    return turns


def curves(
    name: str, title: str, about: str, series: Sequence[Series], x_title: str, y_title: str, *, log: bool = False,
    dots: bool = False, top: float | None = 100.0,
) -> Markup:  # fmt: skip
    """Lines with a band from the lowest to the highest seed."""
    spots = [spot for s in series for spot in s.spots]
    xs = [x for x, *_ in spots]
    lo, hi = (min(xs), max(xs)) if xs else (0.0, 1.0)
    lo, hi = (lo, hi) if hi > lo else ((lo / 1.5, hi * 1.5) if log and lo > 0 else (lo - 0.5, hi + 0.5))
    if not log and lo < 0.2 * hi:
        lo = 0.0
    across = Axis(lo, hi, LEFT, WIDTH - RIGHT, log, x_title)
    heights = [y for s in spots for y in s[1:]] + [s.after for s in series if s.after is not None]
    up = Axis(*bounds(heights, 0.0, top), HEIGHT - BOTTOM, TOP, title=y_title)
    inside = [x_frame(across, TOP, HEIGHT - BOTTOM), y_frame(up, LEFT, WIDTH - RIGHT)]
    turns = coinciding(series)
    for s in reversed(series):  # the best is drawn last, over the others
        places = [(across.at(x), up.at(y), up.at(low), up.at(high)) for x, y, low, high in s.spots]
        if not places:
            continue
        style, parts = style_of(s.index), []
        if len(series) <= BANDS and any(abs(low - high) > 0.05 for *_, low, high in places):
            edge = [(x, high) for x, _, _, high in places] + [(x, low) for x, _, low, _ in reversed(places)]
            parts.append(el("path", d=path(edge, close=True), cls=f"band {style}"))
        dash = f" over{min(turns[s.key], 2)}" if turns[s.key] else ""  # what lies beneath shows through the gaps
        parts.append(el("path", d=path([(x, y) for x, y, *_ in places]), cls=f"line {style}{dash}"))
        ends = places if dots or len(places) == 1 else places[-1:]
        parts += [el("circle", cx=num(x), cy=num(y), r="3", cls=f"dot {style}") for x, y, *_ in ends]
        if s.after is not None:
            parts.append(diamond(places[-1][0], up.at(s.after), style))
        inside.append(el("g", *parts, data_recipe=s.key))
    ranges = f"{lo:.6g} {hi:.6g}{' log' if log else ''}", f"{up.lo:.6g} {up.hi:.6g}{'' if top is None else ' %'}"
    return drawing(name, title, about, *inside, data_x=ranges[0], data_y=ranges[1])


def diamond(x: float, y: float, style: str) -> Markup:
    return el("path", d=path([(x, y - 5), (x + 5, y), (x, y + 5), (x - 5, y)], close=True), cls=f"after {style}")


@dataclass(frozen=True)
class Strip:
    """One recipe's clients."""

    index: int
    key: str
    label: str
    values: Sequence[float]
    spread: Spread


def strips(name: str, title: str, about: str, rows: Sequence[Strip], x_title: str) -> Markup:
    """A line a recipe: every client a dot, half of them inside the box, the median a bar."""
    left, step = 132, 30
    bottom = TOP + step * len(rows)
    lo, hi = bounds([v for r in rows for v in r.values], 0.0, 100.0)
    across = Axis(lo, hi, left, WIDTH - RIGHT, title=x_title)
    inside = [x_frame(across, TOP, bottom)]
    for i, r in enumerate(rows):
        y, style = TOP + step * (i + 0.5), style_of(r.index)
        s = r.spread
        x = {
            key: across.at(v)
            for key, v in (("a", s.least), ("b", s.lower), ("m", s.median), ("c", s.upper), ("d", s.most))
        }
        box = el(
            "rect", x=num(x["b"]), y=num(y - 8), width=num(max(x["c"] - x["b"], 0.5)), height="16", cls=f"box {style}"
        )
        parts = [el("title", r.label), line(x["a"], y, x["d"], y, f"line thin {style}"), box]
        dots = [
            el("circle", cx=num(across.at(v)), cy=num(y + (j * 7 % 5 - 2) * 2.2), r="1.8", cls=f"dot {style}")
            for j, v in enumerate(thin(sorted(r.values), DOTS))
        ]
        parts += [*dots, line(x["m"], y - 9, x["m"], y + 9, "median")]
        inside.append(text(left - 8, y + 4, shortened(r.label, 18), "name", "end", data_recipe=r.key))
        inside.append(el("g", *parts, data_recipe=r.key))
    return drawing(name, title, about, *inside, height=bottom + BOTTOM)


def gains(name: str, title: str, about: str, found: Sequence[Change]) -> Markup:
    """Clients from the greatest loss to the greatest gain; under each bar what the client holds."""
    shown = thin(found, BARS)
    plot, strip, gap = 160, 30, 24
    up = Axis(*_about_zero([100 * c.difference for c in shown]), TOP + plot, TOP, title="percentage points")
    width = (WIDTH - LEFT - RIGHT) / max(len(shown), 1)
    inside = [y_frame(up, LEFT, WIDTH - RIGHT)]
    bars = []
    for i, c in enumerate(shown):
        y, zero = up.at(100 * c.difference), up.at(0)
        kind = "gain" if c.difference > 0 else "loss"
        about_client = el("title", tooltip(c)) if len(shown) <= 60 else ""
        top, height = min(y, zero), max(abs(y - zero), 0.6)
        shape = {
            "x": num(LEFT + i * width + width * 0.08),
            "width": num(width * 0.84),
            "y": num(top),
            "height": num(height),
        }
        bars.append(el("rect", about_client, cls=kind if abs(c.difference) > 1e-12 else "same", **shape))
    inside += [*bars, line(LEFT, up.at(0), WIDTH - RIGHT, up.at(0), "zero")]
    bottom = TOP + plot
    for label, values in (("samples held", [c.samples for c in shown]), ("classes held", [c.classes for c in shown])):
        known = [v for v in values if v is not None]
        if not known:
            continue
        bottom += gap + strip
        inside += amounts([v or 0 for v in values], LEFT, width, bottom, strip)
        inside.append(text(LEFT, bottom - strip - 5, label, "axis", "start"))
    counted_as = "pairs of client and seed" if several_seeds((c.seed, c.client) for c in found) else "clients"
    which = f"{counted_as}, greatest loss to greatest gain" + (
        f" ({len(shown)} of {len(found)})" if len(shown) < len(found) else ""
    )
    inside.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 18, which, "axis"))
    return drawing(name, title, about, *inside, height=bottom + 26)


def tooltip(c: Change) -> str:
    holds = "" if c.samples is None else f"; {c.samples:,} samples of {c.classes} classes"
    return f"client {c.client}, seed {c.seed}: {signed(100 * c.difference, 1)} points{holds}"


def _about_zero(values: Sequence[float]) -> tuple[float, float]:
    return bounds([0.0, *(values or [1.0])])


def holdings(name: str, title: str, about: str, counts: npt.NDArray[np.int64]) -> Markup:
    """Clients across, classes down, a cell as dark as its class's share of the client; sizes underneath. [K, C]"""
    sizes = counts.sum(axis=1)  # [K]
    order = list(range(len(counts)))
    if len(counts) > COLUMNS:  # neighbours then look alike, and an even choice shows the whole
        order = [int(k) for k in np.lexsort((-sizes, counts.argmax(axis=1), sizes == 0))]
    clients, classes = thin(order, COLUMNS), thin(range(counts.shape[1]), LINES)
    left, strip, gap = LEFT, 40, 10
    high = max(min(22.0, 240 / len(classes)), 4.0)
    wide = (WIDTH - left - RIGHT) / len(clients)
    cells: list[list[str]] = [[] for _ in range(SHADES)]
    for i, k in enumerate(clients):
        for j, c in enumerate(classes):
            if counts[k, c]:
                shade = min(int(counts[k, c] / sizes[k] * SHADES), SHADES - 1)
                cells[shade].append(
                    f"M{num(left + i * wide)} {num(TOP + j * high)}h{num(wide)}v{num(high)}h{num(-wide)}z"
                )
    bottom = TOP + high * len(classes)
    inside = [
        el("rect", x=num(left), y=num(TOP), width=num(WIDTH - left - RIGHT), height=num(bottom - TOP), cls="empty")
    ]
    inside += [el("path", d="".join(c), cls=f"s{shade}") for shade, c in enumerate(cells) if c]
    every = -(-len(classes) // max(int((bottom - TOP) / 13), 1))
    inside += [
        text(left - 6, TOP + (j + 0.5) * high + 4, classes[j], anchor="end") for j in range(0, len(classes), every)
    ]
    inside.append(text(0, 0, "class", "axis", transform=f"translate(11 {num((TOP + bottom) / 2)}) rotate(-90)"))
    floor = bottom + gap + strip
    inside += amounts([int(sizes[k]) for k in clients], left, wide, floor, strip, int(sizes.max()))
    thinned = len(clients) < len(counts)
    if not thinned:
        skip = -(-len(clients) // 12)
        inside += [text(left + (i + 0.5) * wide, floor + 14, clients[i]) for i in range(0, len(clients), skip)]
    x_title = (
        "client; below: its samples"
        if not thinned
        else f"{len(clients)} of {len(counts):,} clients by largest class; below: samples"
    )
    inside.append(text((left + WIDTH - RIGHT) / 2, floor + 31, x_title, "axis"))
    return drawing(name, title, about, *inside, height=floor + 38)


def shade_key() -> Markup:
    """What the shades of the heat map stand for."""
    squares = [el("rect", x=str(1 + 14 * i), y="1", width="13", height="10", cls=f"s{i}") for i in range(SHADES)]
    return join(
        [
            "0 % ",
            el(
                "svg",
                *squares,
                cls="key wide",
                viewBox=f"0 0 {14 * SHADES + 1} 12",
                aria_hidden="true",
                focusable="false",
            ),
            " 100 % of the client's samples",
        ]
    )


def amounts(values: Sequence[int], left: float, wide: float, floor: float, strip: float, most: int = 0) -> list[Markup]:
    """A low strip of bars, one a column, with its greatest value and zero at the side."""
    most = max(most, *values)
    tall = Axis(0, max(most, 1), floor, floor - strip)
    steps = [
        f"M{num(left + i * wide + wide * 0.08)} {num(floor)}V{num(tall.at(v))}h{num(wide * 0.84)}V{num(floor)}Z"
        for i, v in enumerate(values)
    ]
    return [
        line(left, floor, WIDTH - RIGHT, floor, "grid"),
        el("path", d="".join(steps), cls="amount"),
        text(left - 6, floor - strip + 8, f"{most:,}", anchor="end"),
        text(left - 6, floor, "0", anchor="end"),
    ]
