"""The laws: what every piece and every engine keeps. New pieces are picked up from the registry by themselves."""

from __future__ import annotations

import random

import pytest
import toy

import headway
from headway.analysis import laws
from headway.core.piece import Piece
from headway.core.recipe import Recipe, spell
from headway.methods import REGISTRY
from headway.methods import recipe as parse

EARLY = {  # as small as they can be seen at work; where a piece needs company, in company
    "gmv": "gmv(warmup=1)",
    "algorithm2": "fedetf+algorithm2(turns=1)",
    "dotreg": "sphere+dotreg",
}
PIECES = [EARLY.get(p.name, p.name) for p in REGISTRY.pieces]
SUMS = [
    "scaffold+fn",
    "fedavg+etf+gmv(warmup=1)",
    "moon+ccvr",
    "fedetf+prox+moon",
    "scaffold+fedrep",
    "fedavgm+fedtc",
    "scaffold+fn+balanced+prox+moon+gmv(warmup=1,space=raw)+ft+ccvr",
    "fedexp+fedrod(private=hyper)",
    "feddyn+proto+ntd+protoalign",
    "fednova+fedtc(overwrite=true)",
    "perfedavg(order=hf)+fn+one_step",
    "fedadam+cosine+spread+ditto",
]
RECIPES = PIECES + SUMS


@pytest.fixture(scope="module")
def task():
    return laws.law_task()


def state_of(recipe, task, rounds=2):
    return laws.Trial(recipe, task).state(rounds)


@pytest.mark.parametrize("law", [law for law in laws.LAWS if law != "composes"])
@pytest.mark.parametrize("text", RECIPES)
def test_the_law_holds(law, text, task):
    verdict = laws.verdict(law, laws.LAWS[law], laws.Trial(parse(text), task))
    assert not verdict.broken


@pytest.mark.parametrize("text", PIECES[::4])  # tests/core/test_compatibility.py refuses pair by pair
def test_beside_pieces_of_every_kind_it_trains_or_is_refused(text, task):
    assert not laws.verdict("composes", laws.composes, laws.Trial(parse(text), task)).broken


# The ways to say a recipe; each is given the pieces in an order of the test's own.
WAYS = {
    "objects": lambda pieces: Recipe(tuple(pieces)),
    "registry": REGISTRY.sum_of,
    "python": headway.recipe,
    "text": lambda pieces: parse("+".join(map(spell, pieces))),
}


def orders_of(pieces):
    """Backwards, the first one last, and shuffled: every two pieces change places in one of them."""
    shuffled = random.Random(0).sample(pieces, len(pieces))
    return [pieces[::-1], (*pieces[1:], pieces[0]), tuple(shuffled)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", SUMS)
def test_order_of_the_pieces_carries_no_meaning(text, way, task):
    recipe = parse(text)
    expected = state_of(recipe, task)
    for order in orders_of(recipe.pieces):
        other = WAYS[way](order)
        toy.assert_same(state_of(other, task), expected)
        assert str(other) == str(recipe)


class Twice(Piece):
    name, slot = "twice", "reg"

    def correct(self, g, local):
        return 2 * g


class Decayed(Piece):
    name, slot = "decayed", "reg"

    def correct(self, g, local):
        return g + 0.1 * local.w


@pytest.mark.parametrize("way", [way for way in WAYS if way != "text"])
def test_order_of_pieces_that_nobody_registered_carries_no_meaning_either(way, task):
    base = parse("fedavg").pieces
    one, other = (WAYS[way]((*base, *pair)) for pair in ((Twice(), Decayed()), (Decayed(), Twice())))
    toy.assert_same(state_of(one, task), state_of(other, task))


@pytest.mark.parametrize("text", ["fedetf+gmv(warmup=1,space=raw)", "scaffold+fedrep", "perfedavg", "ditto", "fedtc"])
def test_runs_of_two_recipes_share_partition_sampling_and_clients(text, tmp_path):
    given = {"data": "digits", "train_size": 200, "clients": 6, "sampling": 0.5, "rounds": 3, "model": "mlp_small"}
    for recipe in ("fedavg", text):
        headway.run(recipe, out=tmp_path / recipe, **given)
    for name in ("partition.json", "sampling.json"):
        assert (tmp_path / text / name).read_bytes() == (tmp_path / "fedavg" / name).read_bytes()
