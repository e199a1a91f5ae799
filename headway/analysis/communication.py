"""What server and clients send each other under a recipe, and what that reveals of a client's data."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from headway.analysis.exchange import WHAT, facts
from headway.analysis.stand_ins import stand_in_round, without_torch
from headway.base.errors import RecipeError
from headway.core import compatibility
from headway.core.compatibility import Setup
from headway.core.recipe import Recipe, explain
from headway.methods.guide import guide

OWN = "headway.methods."
UPDATE = (
    "the model trained on the data: inputs can be reconstructed from small updates, label counts read off "
    "the last layer"
)
NOT_DESCRIBED = "not described by its author"


def communication(recipe: Recipe) -> dict[str, list[str]]:
    """What goes down, up, stays on the client, is fixed for all, and is asked once at the end.

    Read off the hooks. For headway's own pieces stand-ins for tensors suffice, which spares the seconds that torch
    takes to load; where it is loaded, or where a user's piece takes part, a real round is run.
    """
    quick = "torch" not in sys.modules and all(type(p).__module__.startswith(OWN) for p in recipe.pieces)
    if quick:
        with suppress(Exception):  # what a stand-in cannot answer, a real tensor can
            return imagined(recipe)
    if refusal(recipe) is None:
        return measured(recipe)
    if not quick:
        with suppress(Exception):  # a recipe that no run accepts need not survive a round
            return measured(recipe)
    return {what: [] for what in WHAT}


def imagined(recipe: Recipe) -> dict[str, list[str]]:
    """The same from stand-ins; any error says that they do not suffice."""
    with without_torch():
        return facts(recipe, stand_in_round(recipe))


def measured(recipe: Recipe) -> dict[str, list[str]]:
    """The same from a real round on a tiny task."""
    from headway.analysis.toy_round import toy_round  # which needs torch

    return facts(recipe, toy_round(recipe))


def explanation(recipe: Recipe) -> dict[str, Any]:
    """Which piece acts at which hook, what is sent, and why a run would refuse the recipe (None: it would not)."""
    hooks = [{"hook": hook, "fold": fold, "pieces": who} for hook, fold, who in explain(recipe)]
    return {"recipe": str(recipe), "hooks": hooks, **communication(recipe), "refused": refusal(recipe)}


def refusal(recipe: Recipe) -> str | None:
    """Why a run would refuse the recipe, whatever the task."""
    try:
        compatibility.check(Setup(recipe, dim=10**6, classes=2))
    except RecipeError as error:
        return str(error)
    return None


def leaves(recipe: Recipe) -> list[dict[str, str]]:
    """What a client sends, when, and what it reveals (the key `tells`, as in the JSON of `explain --privacy`)."""
    seen = communication(recipe)
    owners = {p.name for p in recipe.pieces}
    model = [what for what in seen["up"] if what.split(".")[0] not in owners]
    rows = [{"what": ", ".join(model), "when": "every round", "tells": UPDATE}] if model else []
    if seen["up"]:
        rows.append({"what": "n", "when": "every round", "tells": "how many samples the client has"})
        rows.append({"what": "loss", "when": "every round", "tells": "how well the model fits the client's data"})
    for what in (what for what in seen["up"] if what not in model):
        name, _, key = what.partition(".")
        rows.append({"what": what, "when": "every round", "tells": guide(name).reveals.get(key, NOT_DESCRIBED)})
    for what in seen["once"]:
        name = what.partition(":")[0]
        reveals = guide(name).reveals.get("survey", NOT_DESCRIBED)
        rows.append({"what": what, "when": "once, at the end", "tells": reveals})
    return rows
