"""`headway cite`: the papers behind a recipe."""

from __future__ import annotations

from headway.cli.help import declare
from headway.cli.options import plugin, recipe_argument
from headway.cli.output import emit
from headway.methods import recipe as parse_recipe
from headway.methods.references import bibtex


@declare("cite", recipe_argument(), plugin())
def command(recipe: str) -> None:
    """BibTeX of the papers behind a recipe."""
    text = bibtex(parse_recipe(recipe))
    emit(False, text, lambda c: c.out(text, highlight=False))
