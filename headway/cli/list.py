"""`headway list`: the pieces, recipes, models, data sets and partitions there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.base.errors import ConfigError, nearest
from headway.base.registered import FAULTS, discover
from headway.cli import completion
from headway.cli.help import Argument, declare
from headway.cli.options import json_output, plugin
from headway.cli.output import emit
from headway.core.recipe import idea_line, summary_line
from headway.data import DATASETS
from headway.data.partitions.partition import PARTITIONS
from headway.methods import REGISTRY
from headway.methods import recipe as parse_recipe
from headway.models import MODELS

WHAT = Argument(
    "what", default="pieces", about="pieces, recipes, models, data or partitions [pieces]",
    shell_complete=completion.words("pieces", "recipes", "models", "data", "partitions"),
)  # fmt: skip


@declare("list", WHAT, plugin(), json_output("print JSON"))
def command(what: str, as_json: bool) -> None:
    """What there is: pieces, recipes, models, data, partitions."""
    rows = listing(what)
    for fault in FAULTS:
        print(f"note: {fault}", file=sys.stderr)
    emit(as_json, rows, lambda c: print_listing(c, rows))


def listing(what: str) -> list[dict[str, Any]]:
    """One mapping an entry, fit for JSON."""
    kinds = {
        "pieces": _pieces,
        "recipes": _recipes,
        "models": _models,
        "data": _data,
        "partitions": _partitions,
    }
    if what not in kinds:
        raise ConfigError(f"list {what or repr(what)}: there is no such list; {nearest(what, kinds)}")
    discover()
    return kinds[what]()


def _pieces() -> list[dict[str, Any]]:
    return [
        {
            "name": p.name,
            "slot": p.slot,
            "settings": {f.name: {"default": f.default, "about": f.metadata.get("about", "")} for f in fields(p)},
            "about": idea_line(p),
            "paper": p.paper,
            "citation": summary_line(p),
        }
        for p in REGISTRY.pieces
    ]


def _recipes() -> list[dict[str, Any]]:
    named = {p.name: p.name for p in REGISTRY.pieces if p.slot in ("base", "share")} | dict(REGISTRY.aliases)
    return [{"name": name, "pieces": str(parse_recipe(name))} for name in named]


def _models() -> list[dict[str, Any]]:
    return [{"name": m.name, "about": m.about, "min_size": m.min_size, "bn": m.bn} for m in MODELS.values()]


def _data() -> list[dict[str, Any]]:
    return [{f.name: getattr(d, f.name) for f in fields(d)} for d in DATASETS.values()]


def _partitions() -> list[dict[str, Any]]:
    return [{"name": name, "about": about} for name, about in PARTITIONS.items()]


def print_listing(console: Console, items: Sequence[dict[str, Any]]) -> None:
    """What fits a terminal; --json has the rest: keys of papers, titles, licences."""
    shown = [column for column in items[0] if column not in ("paper", "title", "licence")]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in shown:
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for item in items:
        table.add_row(*(escape(_cell(item[column])) for column in shown))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v['default']}" for k, v in value.items()) or "-"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "-" if value is None else str(value)
