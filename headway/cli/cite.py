"""`headway cite`: the papers behind a recipe."""

from __future__ import annotations

import sys

from headway.cli.help import declare
from headway.cli.options import plugin, recipe_argument
from headway.cli.output import emit
from headway.methods import recipe as parse_recipe
from headway.methods.references import bibtex


@declare("cite", recipe_argument(), plugin())
def command(recipe: str) -> None:
    """BibTeX of the papers behind a recipe."""
    parsed = parse_recipe(recipe)
    text = bibtex(parsed)
    for piece in parsed.pieces:
        if not piece.paper:
            print(f"note: {piece.name} has no paper", file=sys.stderr)
    emit(False, text, lambda c: c.out(text, highlight=False))
