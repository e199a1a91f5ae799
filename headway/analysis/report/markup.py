"""HTML by construction: text is escaped unless it was built here, so no name can become markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

VOID = ("meta", "input", "img", "br")
# control characters, lone surrogates and whatever turns the direction of text: none may stand in a page
UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def plain(text: object) -> str:
    """The text with a visible mark in place of characters that a page cannot hold."""
    return UNFIT.sub("\ufffd", str(text))


def esc(value: object) -> Markup:
    """What the value looks like in a page; markup stays what it is."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(plain(value), quote=True))


def prose(text: object) -> Markup:
    """A sentence in which `words` between backticks are code."""
    parts = re.split(r"`([^`\n]+)`", str(text))
    return join(el("code", part) if i % 2 else part for i, part in enumerate(parts))


def join(parts: Iterable[object], between: str = "") -> Markup:
    return Markup(between.join(esc(p) for p in parts))


def el(name: str, /, *children: object, **attributes: Any) -> Markup:
    """<name attributes>children</name>; `cls` is class, underscores are dashes, None and False are left out."""
    text = f"<{name}"
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        text += f" {shown}" if value is True else f' {shown}="{esc(value)}"'
    if name in VOID:
        return Markup(text + ">")
    return Markup(f"{text}>{join(children)}</{name}>")


def cell(value: object, sort: float | str | None = None, **more: Any) -> Markup:
    """A cell; `sort` is what its column is ordered by where the text is not."""
    return el(
        "td", value, data_sort=None if sort is None else f"{sort:.6g}" if isinstance(sort, float) else sort, **more
    )


def table(
    caption: object,
    header: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    cls: str = "",
    row_heads: bool = True,
    marks: Sequence[dict[str, Any]] = (),
) -> Markup:
    """A table in a box of its own that scrolls sideways; the first cell of a row is its heading."""
    head = el("tr", *(el("th", h, scope="col") for h in header))
    body = []
    for i, row in enumerate(rows):
        cells = [c if str(c).startswith("<td") and isinstance(c, Markup) else el("td", c) for c in row]
        if row_heads and len(row):
            cells[0] = el("th", row[0], scope="row", cls="named" if "<bdi" in str(row[0]) else None)
        body.append(el("tr", *cells, **(marks[i] if i < len(marks) else {})))
    inner = el("table", el("caption", el("span", caption)), el("thead", head), el("tbody", *body), cls=cls or None)
    return el("div", inner, cls="scroll", tabindex="0", role="region", aria_label=caption)


def details(summary: object, *inside: object) -> Markup:
    return el("details", el("summary", summary), *inside)
