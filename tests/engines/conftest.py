"""Engines that are closed when their test ends."""

from __future__ import annotations

import pytest

from headway.engines import PoolEngine


@pytest.fixture
def pooled():
    engines = []

    def make(recipe, task, workers):
        engines.append(PoolEngine(recipe, task, workers))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
