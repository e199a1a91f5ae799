"""The grammar of recipes: what parses, what it means, and one sentence for what does not."""

import pytest
from recipes import piece, sentence

import headway
from headway.methods import recipe as parse


# ---- what parses
def test_headway_recipe_is_the_parser():
    assert str(headway.recipe("scaffold+fn")) == "scaffold+fn"


def test_order_case_and_spaces_carry_no_meaning():
    assert parse("fn+scaffold").pieces == parse(" Scaffold + FN ").pieces == parse("scaffold+fn").pieces


def test_settings_are_read_as_the_type_of_their_field():
    assert piece("finetune(epochs=3,lr=0.1)", "finetune").epochs == 3
    assert piece("finetune(lr=none)", "finetune").lr is None
    assert piece("moon(mu=1e+1, tau=.25)", "moon").mu == 10.0
    assert piece("etfproj(project=no)", "etfproj").project is False
    assert piece("scaffold(control=none)", "scaffold").control == "none"  # here `none` is a choice, not nothing


# ---- what does not
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "recipe='': it is empty; name a recipe or a piece, such as fedavg"),
        ("   ", "it is empty"),
        ("fedavg+", "'fedavg+': a piece is missing beside a +"),
        ("+fedavg", "a piece is missing beside a +"),
        ("fedavg++moon", "a piece is missing beside a +"),
        ("moon(mu=1", "the parentheses do not match; write name(key=value)"),
        ("moon)mu=1(", "is not a piece; write name or name(key=value)"),
        ("fed avg", "'fed avg' is not a piece"),
        ("fedavg,moon", "'fedavg,moon' is not a piece; write name or name(key=value), joined with +"),
        ("moon(mu)", "moon(mu): 'mu' is not a setting; write key=value, such as mu=1"),
        ("moon(mu=)", "'mu=' is not a setting; write key=value, such as mu=1"),
        ("moon(=1)", "'=1' is not a setting; write key=value"),
        ("moon(mu=1,mu=2)", "mu is given twice; give it once"),
        ("moon(mu=1)+moon(mu=2)", "moon appears twice with different settings; name it once"),
        ("moon(mu=abc)", "moon(mu=abc): mu must be a number"),
        ("moon(mu=-1)", "moon(mu=-1.0): mu must be a finite number >= 0"),
        ("moon(mu=nan)", "moon(mu=nan): mu must be a finite number >= 0"),
        ("moon(mu=1e999)", "moon(mu=inf): mu must be a finite number >= 0"),
        ("finetune(epochs=1.5)", "finetune(epochs=1.5): epochs must be a whole number"),
        ("finetune(epochs=0)", "finetune(epochs=0): epochs must be a whole number >= 1"),
        ("ccvr(per_class=-1)", "ccvr(per_class=-1): per_class must be a whole number >= 1"),
        ("etfproj(d=0)", "etfproj(d=0): d must be a whole number >= 1"),
        ("etfproj(project=maybe)", "etfproj(project=maybe): project must be true or false"),
        ("scaffold(control=foo)", "scaffold(control=foo): control is one of participation, none"),
        ("prox(mux=1)", "prox(mux=1): prox has no setting 'mux'; did you mean 'mu'?"),
        ("fn(x=1)", "fn(x=1): fn has no setting 'x'; it has none, write fn"),
        ("fedprox(mux=1)", "fedprox(mux=1): no piece of fedavg+prox has a setting 'mux'; did you mean 'mu'?"),
        ("fedfn(x=1)", "fedfn(x=1): no piece of fedavg+fn has a setting 'x'; they have none; write fedfn"),
        ("scafold", "scafold: there is no piece or recipe 'scafold'; did you mean 'scaffold'?"),
        ("zzz", "zzz: there is no piece or recipe 'zzz'; `headway list` shows them all"),
    ],
)
def test_a_text_that_is_no_recipe_is_one_sentence_with_a_fix(text, wanted):
    said = sentence(text)
    assert wanted in said
    assert "\n" not in said
