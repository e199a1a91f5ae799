"""What every section is made of: headings, figures with legend and data, percentages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from headway.analysis.report.gather import Group
from headway.analysis.report.markup import Markup, details, el, join, table
from headway.analysis.report.svg import key

NOTHING = "\N{EN DASH}"  # stands where a table has nothing to say


def section(name: str, title: str, *inside: object) -> Markup:
    return el("section", el("h2", title, id=f"{name}-heading"), *inside, id=name, aria_labelledby=f"{name}-heading")


def percent(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{100 * value:.{digits}f}"


def with_spread(mean: float | None, std: float | None, scale: float = 1.0, digits: int = 2) -> str:
    """`90.53 ± 0.21`; the spread where there are several seeds."""
    if mean is None:
        return "n/a"
    return f"{scale * mean:,.{digits}f}" + ("" if std is None else f" ± {scale * std:,.{digits}f}")


def spread_cell(mean: float | None, std: float | None, scale: float, digits: int) -> Markup:
    """The same with the spread in small; one that rounds to nothing is left out."""
    text, sign, around = with_spread(mean, std, scale, digits).partition(" ±")
    small = el("span", sign + around, cls="spread") if sign and float(around.replace(",", "")) > 0 else ""
    return join([text, small])


def signed(value: float, digits: int) -> str:
    """`+1.20`, `-0.50` with a true minus"""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def index_of(group: Group) -> int:
    """The recipe's place in the leaderboard, which decides its colour."""
    return int(group.key[1:])


def legend(groups: Iterable[Group]) -> Markup:
    items = [el("li", key(index_of(g)), el("bdi", g.label), data_recipe=g.key) for g in groups]
    return el("ul", *items, cls="legend")


def figure(
    title: str,
    drawing: Markup,
    *,
    note: object = "",
    groups: Sequence[Group] = (),
    header: Sequence[object] = (),
    rows: Sequence[Sequence[object]] = (),
    more: object = "",
) -> Markup:
    """A chart with its title, legend, a note on how to read it, and its numbers as a table to open."""
    caption = el("figcaption", el("h3", title), el("p", note, cls="note") if note else "")
    data = details("Numbers", table(f"{title}: numbers", header, rows)) if rows else ""
    return el("figure", caption, legend(groups) if len(groups) > 1 else "", drawing, more, data)


def counted(n: int, noun: str, many: str | None = None) -> str:
    return f"{n:,} {noun if n == 1 else many or noun + 's'}"


def clients_text(pairs: Collection[tuple[int, int]]) -> str:
    """How many clients these are; a client (seed, k) under another seed holds other data and counts anew."""
    return f"{len(pairs):,} pairs of client and seed" if several_seeds(pairs) else counted(len(pairs), "client")


def several_seeds(pairs: Iterable[tuple[int, int]]) -> bool:
    return len({seed for seed, _ in pairs}) > 1


def listed(words: Sequence[str]) -> str:
    """`a, b and c`"""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def name_of(group: Group) -> Markup:
    """A recipe's name, whose direction of writing ends with it."""
    return el("bdi", group.label)


def labelled(group: Group) -> Markup:
    """A recipe's name beside its line in small."""
    return join([key(index_of(group)), el("bdi", group.label)])
