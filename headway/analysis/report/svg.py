"""Axes, ticks and frames of the page's drawings; colours and line styles come from page.css by class."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headway.analysis.report.markup import Markup, el, join, plain

WIDTH, HEIGHT = 460, 300  # a phone shows it at three quarters, half a desktop page at a little more than its size
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 42  # page.js knows them too
COLOURS = 7  # hues that stay apart for every kind of colour vision; dashes tell further recipes from the first seven


def num(value: float) -> str:
    """A coordinate with one decimal and no more characters than it needs."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def style_of(index: int) -> str:
    """The classes that give the i-th recipe its colour and its dash."""
    return f"c{index % COLOURS} d{index // COLOURS % 3}"


@dataclass(frozen=True)
class Axis:
    """Values lo..hi on pixels start..end."""

    lo: float
    hi: float
    start: float
    end: float
    log: bool = False
    title: str = ""

    def at(self, value: float) -> float:
        lo, hi, v = (
            (math.log10(x) for x in (self.lo, self.hi, max(value, self.lo))) if self.log else (self.lo, self.hi, value)
        )
        return self.start + (v - lo) / ((hi - lo) or 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return log_ticks(self.lo, self.hi) if self.log else ticks(self.lo, self.hi, 5)


def ticks(lo: float, hi: float, about: int) -> list[float]:
    """Round numbers from lo to hi, about so many: steps of 1, 2 or 5 times a power of ten."""
    span = (hi - lo) or 1.0
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(lo / step - 1e-9)
    count = math.floor(hi / step + 1e-9) - first
    return [round((first + i) * step, 10) for i in range(count + 1)]


def log_ticks(lo: float, hi: float) -> list[float]:
    """1, 2, 5, 10, ...; more of them in a narrow range, powers of ten alone in a wide one."""
    decades = math.log10(hi / lo)
    factors = (1, 2, 3, 4, 5, 7) if decades < 0.8 else (1, 2, 5) if decades < 2.5 else (1,)
    powers = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    return [f * 10.0**e for e in powers for f in factors if lo * (1 - 1e-9) <= f * 10.0**e <= hi * (1 + 1e-9)]


def bounds(values: Iterable[float], least: float | None = None, most: float | None = None) -> tuple[float, float]:
    """A range of round numbers around the values, kept inside least..most."""
    known = list(values) or [0.0, 1.0]
    lo, hi = min(known), max(known)
    if hi - lo < 1e-9:
        lo, hi = lo - 1, hi + 1
    step = ticks(lo, hi, 5)
    size = step[1] - step[0] if len(step) > 1 else (hi - lo)
    lo, hi = math.floor(lo / size + 1e-9) * size, math.ceil(hi / size - 1e-9) * size
    return max(lo, least) if least is not None else lo, min(hi, most) if most is not None else hi


def number(value: float) -> str:
    """A tick's label: 1,000 and 0.25."""
    text = f"{value:,.0f}" if abs(value) >= 1 and value == round(value) else f"{value:.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def text(x: float, y: float, words: object, cls: str = "tick", anchor: str = "middle", **more: str) -> Markup:
    return el("text", words, x=num(x), y=num(y), cls=cls, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> Markup:
    return el("path", d=f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}", cls=cls)


def x_frame(axis: Axis, top: float, bottom: float) -> Markup:
    parts = []
    for value in axis.ticks():
        x = axis.at(value)
        parts += [line(x, top, x, bottom, "grid"), text(x, bottom + 15, number(value))]
    if axis.title:
        parts.append(text((axis.start + axis.end) / 2, bottom + 33, axis.title, "axis"))
    return join(parts)


def y_frame(axis: Axis, left: float, right: float) -> Markup:
    parts = []
    for value in axis.ticks():
        y = axis.at(value)
        parts += [line(left, y, right, y, "grid"), text(left - 6, y + 4, number(value), anchor="end")]
    if axis.title:
        middle = num((axis.start + axis.end) / 2)
        parts.append(text(0, 0, axis.title, "axis", transform=f"translate(11 {middle}) rotate(-90)"))
    return join(parts)


def path(points: Sequence[tuple[float, float]], close: bool = False) -> str:
    steps = [f"{num(x)} {num(y)}" for x, y in points]
    return "M" + "L".join(steps) + ("Z" if close else "")


def drawing(name: str, title: str, about: str, *inside: object, height: float = HEIGHT, **more: Any) -> Markup:
    """An SVG with its text alternative: a title, and a description of what can be seen."""
    names = {"t": f"{name}-title", "d": f"{name}-about"}
    words = [el("title", title, id=names["t"]), el("desc", about, id=names["d"])]
    return el(
        "svg", *words, *inside, cls="chart", viewBox=f"0 0 {WIDTH} {num(height)}", role="img",
        aria_labelledby=f"{names['t']} {names['d']}", **more,
    )  # fmt: skip


def key(index: int) -> Markup:
    """A recipe's line in small, for legends."""
    inside = el("path", d="M1 6H27", cls=f"line {style_of(index)}")
    return el("svg", inside, cls="key", viewBox="0 0 28 12", aria_hidden="true", focusable="false")


def shortened(name: str, most: int) -> str:
    """A label that fits its margin."""
    name = plain(name)
    return name if len(name) <= most else name[: most - 1] + "…"
