"""`headway run`: one recipe, with one seed or several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.lazy import LazyModule
from headway.cli.help import declare
from headway.cli.options import recipe_argument, shared_options
from headway.cli.output import emit
from headway.cli.values import given_options, hint_to_continue, task_values
from headway.methods import recipe as parse_recipe
from headway.training.settings import settings

if TYPE_CHECKING:
    from headway import api
    from headway.cli import results
    from headway.runs import compare, runner
else:  # torch comes with them: recipe and settings are checked before
    api, results = LazyModule("headway.api"), LazyModule("headway.cli.results")
    compare, runner = LazyModule("headway.runs.compare"), LazyModule("headway.runs.runner")


@declare("run", recipe_argument(), *shared_options())
def command(recipe: str, **given: Any) -> None:
    """One federated training run -> a run directory."""
    values = task_values(given)
    parse_recipe(recipe)
    s = settings(values)
    how = given_options(given)
    if how.seeds is None:
        run = runner.execute(recipe, s, how.out or api.default_out(recipe, s), how.options)
        emit(how.json, run.summary | {"run": str(run.path)}, lambda c: results.summary(c, run))
        return
    out = how.out or api.default_out(recipe, s, how.seeds)
    with hint_to_continue(how.options.overwrite):
        table = compare.compare([recipe], s, how.seeds, out, how.options, place=folder_of_seed)
    emit(how.json, table.records(), lambda c: results.leaderboard(c, table))


def folder_of_seed(recipe: object, seed: int) -> Path:
    return Path(f"seed-{seed}")
