"""Recipes as their tests look at them."""

from __future__ import annotations

import pytest

from headway.base.errors import RecipeError
from headway.methods import recipe as parse


def sentence(text):
    with pytest.raises(RecipeError) as caught:
        parse(text)
    return str(caught.value)


def names(text):
    return [p.name for p in parse(text).pieces]


def piece(text, name):
    return next(p for p in parse(text).pieces if p.name == name)
