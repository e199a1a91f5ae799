"""`headway explain`: which piece acts at which step of a round, and what is sent."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape

from headway.analysis.communication import explanation, leaves
from headway.analysis.exchange import WHAT
from headway.cli.help import declare
from headway.cli.options import flag, json_output, plugin, recipe_argument
from headway.cli.output import emit, plain_table
from headway.core.recipe import Recipe
from headway.methods import recipe as parse_recipe

PRIVACY = flag("--privacy", about="what leaves a client, and what it reveals of its data")


@declare("explain", recipe_argument(), PRIVACY, plugin(), json_output("print JSON"))
def command(recipe: str, privacy: bool, as_json: bool) -> None:
    """Which piece acts at which step, and what is sent."""
    parsed = parse_recipe(recipe)
    if privacy:
        rows = leaves(parsed)
        emit(as_json, rows, lambda c: print_privacy(c, parsed, rows))
    else:
        facts = explanation(parsed)
        emit(as_json, facts, lambda c: print_explanation(c, facts))


def print_explanation(console: Console, facts: dict[str, Any]) -> None:
    console.print(f"{facts['recipe']}: everything not listed is FedAvg's", markup=False)
    for line in facts["hooks"]:
        console.print(f"  {line['hook']:<12} {line['fold']:<6} {' '.join(line['pieces'])}", markup=False)
    for what in WHAT:
        if facts[what]:
            console.print(f"  {what + ':':<8}{', '.join(facts[what])}", markup=False)
    if facts["refused"]:
        console.print(f"  a run is refused: {facts['refused']}", markup=False)


def print_privacy(console: Console, recipe: Recipe, rows: list[dict[str, str]]) -> None:
    console.print(f"{recipe}: what leaves a client, and what it reveals of its data", markup=False)
    table = plain_table("leaves", "when", "reveals")
    table.columns[1].justify = table.columns[2].justify = "left"
    for row in rows:
        table.add_row(*(escape(row[key]) for key in ("what", "when", "tells")))
    console.print(table)
    console.print("headway simulates: nothing here is encrypted, clipped or noised.", markup=False)
