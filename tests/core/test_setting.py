"""Settings of pieces: their limits hold however a piece is made."""

from __future__ import annotations

import pytest

from headway.base.errors import RecipeError
from headway.methods import REGISTRY


def test_half_an_epoch_is_refused_in_python_too():
    with pytest.raises(RecipeError, match=r"finetune\(epochs=1\.5\): epochs must be a whole number >= 1"):
        REGISTRY.by_name["finetune"](epochs=1.5)
    REGISTRY.by_name["moon"](mu=1)  # a whole number is a number too
