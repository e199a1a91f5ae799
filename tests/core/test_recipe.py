"""A recipe of several pieces: what decides, how it is spelt, and what cannot stand together."""

from __future__ import annotations

import pytest
from recipes import names, sentence

from headway.methods import REGISTRY
from headway.methods import recipe as parse


@pytest.mark.parametrize("text", [*REGISTRY.names(), "moon(mu=5)+ccvr", "fedetf-noproj", "finetune(lr=0.3,loss=ce)"])
def test_a_recipe_spelt_out_parses_to_itself(text):
    assert parse(str(parse(text))).pieces == parse(text).pieces


def test_the_title_is_what_the_user_wrote():
    assert parse("FedProx( mu = 1 )").title == "fedprox(mu=1)"


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("etf+babu", ("etf", "babu")),
        ("etf+etfproj", ("etf", "etfproj")),
        ("scaffold+fedavgm", ("scaffold", "fedavgm")),
        ("fedper+fedrep", ("fedper", "fedrep")),
        ("fedtc+fedper", ("fedtc", "fedper")),
        ("fedtc+balanced", ("fedtc", "balanced")),
    ],
)
def test_two_pieces_that_decide_the_same_thing_are_both_named(text, both):
    said = sentence(text)
    assert all(name in said for name in both)
    assert said.endswith("keep one of the two")


def test_normalised_features_and_a_fixed_frame_go_together():
    assert names("fn+etf") == ["fedavg", "fn", "etf"]
