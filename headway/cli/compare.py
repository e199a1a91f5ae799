"""`headway compare`: several recipes and seeds on one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.base.lazy import LazyModule
from headway.cli import completion
from headway.cli.help import Argument, declare
from headway.cli.options import shared_options
from headway.cli.output import emit
from headway.cli.values import given_options, hint_to_continue, task_values
from headway.methods import recipe as parse_recipe
from headway.training.settings import settings

if TYPE_CHECKING:
    from headway import api
    from headway.cli import results
    from headway.runs import compare
else:  # torch comes with them: recipes and settings are checked before
    api, results = LazyModule("headway.api"), LazyModule("headway.cli.results")
    compare = LazyModule("headway.runs.compare")

RECIPES = Argument(
    "recipes", nargs=-1, required=True, shell_complete=completion.recipes,
    about="one recipe or more, such as fedavg scaffold+fn",
)  # fmt: skip


@declare("compare", RECIPES, *shared_options())
def command(recipes: tuple[str, ...], **given: Any) -> None:
    """Several recipes and seeds on one task -> a leaderboard."""
    values = task_values(given)
    for recipe in recipes:
        parse_recipe(recipe)
    s = settings(values)
    how = given_options(given)
    seeds = how.seeds or [s.seed]
    out = how.out or api.default_comparison(recipes, s, seeds)
    with hint_to_continue(how.options.overwrite):
        table = compare.compare(recipes, s, seeds, out, how.options)
    emit(how.json, table.records(), lambda c: results.leaderboard(c, table))
