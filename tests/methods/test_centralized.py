"""Centralised training: all data belong to one client."""

from __future__ import annotations

import numpy as np
import pytest
from toy import one_round, several, skewed, slope, two_clients

from headway.methods import recipe as parse


def test_a_round_by_hand() -> None:
    # one step on x = 2 of class 0 and x = 1, 2 of class 1 together: the mean over the three samples
    recipe, task = parse("centralized+babu"), two_clients(start=0.5)
    server, reports, _ = one_round(recipe, task.for_recipe(recipe))
    g = (slope(0.5, [2.0], 0) + 2 * slope(0.5, [1.0, 2.0], 1)) / 3
    assert float(server.w["body.u"]) == pytest.approx(0.5 - 0.1 * g, rel=1e-5)
    assert [(r.client, r.n) for r in reports] == [(0, 3)]


def test_the_pool_is_every_clients_data_once() -> None:
    task, recipe = skewed(5, train_size=200), parse("centralized")
    pooled = task.for_recipe(recipe)
    assert len(pooled.data) == 1
    apart = np.concatenate([task.data.parts[k] for k in range(5)])
    assert sorted(pooled.data.parts[0].tolist()) == sorted(apart.tolist())
    assert len(pooled.test(0)[1]) == sum(len(task.test(k)[1]) for k in range(5))
    assert task.for_recipe(parse("fedavg")) is task


def test_sampling_does_not_thin_the_pool() -> None:
    recipe = parse("centralized")
    task = skewed(5, train_size=200, sampling=0.2).for_recipe(recipe)
    server, _ = several(recipe, task, 2)
    assert server.round == 2
    assert [task.sampling(t) for t in range(2)] == [[0], [0]]
