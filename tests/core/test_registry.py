"""The registry: names that stand for several pieces, and the base a recipe gets."""

from __future__ import annotations

from recipes import names, piece

from headway.methods import recipe as parse


def test_a_recipe_without_a_base_is_on_fedavg():
    assert names("moon") == ["fedavg", "moon"]


def test_another_base_replaces_the_one_inside_an_alias():
    assert names("scaffold+fedprox") == ["scaffold", "prox"]


def test_the_same_piece_twice_is_one_piece():
    assert parse("moon(mu=5)+moon(mu=5)").pieces == parse("moon(mu=5)").pieces


def test_settings_of_an_alias_reach_the_piece_that_has_them():
    assert piece("fedprox(mu=0.5)", "prox").mu == 0.5
    assert piece("fedetf(gamma=2)", "balanced").gamma == 2.0
    assert piece("fedetf-fixedtemp(beta=4)", "etfproj").temperature == "fixed"  # the alias's own setting stays
