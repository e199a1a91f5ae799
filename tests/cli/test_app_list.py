"""`headway list`, `explain` and `cite`: what there is, what it does, and whose it is."""

import re

import pytest
from calling import ESCAPE, headway

import headway as package
from headway.methods import REGISTRY

pytestmark = pytest.mark.usefixtures("in_tmp")


# ---- list, explain, cite
@pytest.mark.parametrize(
    ("what", "some", "keys"),
    [
        ("pieces", {"fedavg", "scaffold", "fn", "ccvr"}, {"name", "slot", "settings", "about", "paper"}),
        ("recipes", {"fedavg", "fedprox", "fedetf", "fedbabu"}, {"name", "pieces"}),
        ("models", {"mlp", "mcmahan_cnn", "resnet18"}, {"name", "about", "min_size", "bn"}),
        ("data", {"digits", "mnist", "cifar10", "femnist"}, {"name", "classes", "train", "test", "shape", "licence"}),
        ("partitions", {"iid", "dir", "shard", "classes", "natural"}, {"name", "about"}),
    ],
)
def test_list(what, some, keys):
    rows = headway("list", what, "--json").json
    assert some <= {row["name"] for row in rows}
    assert all(keys <= set(row) for row in rows)
    text = headway("list", what)
    assert text.code == 0
    assert ESCAPE not in text.out
    for row in rows:  # names are never cut
        assert re.search(rf"^ {re.escape(row['name'])} ", text.out, re.MULTILINE)


def test_list_without_a_word_lists_the_pieces():
    assert headway("list").out == headway("list", "pieces").out


def test_every_listed_recipe_parses_to_what_is_listed():
    for row in headway("list", "recipes", "--json").json:
        assert str(package.recipe(row["name"])) == row["pieces"]


@pytest.mark.parametrize("name", REGISTRY.names())
def test_explain_says_what_is_sent_for_every_piece_and_recipe(name):
    facts = headway("explain", name, "--json").json
    assert set(facts) == {"recipe", "hooks", "down", "up", "stays", "frozen", "once", "refused"}
    text = headway("explain", name)
    assert text.code == 0
    assert text.out.startswith(f"{facts['recipe']}: everything not listed is FedAvg's\n")
    for line in facts["hooks"]:
        assert line["hook"] in text.out


def test_explain_of_the_design_document():
    told = headway("explain", "scaffold+fn+gmv+ccvr").out
    assert "  correct      chain  scaffold\n" in told
    assert "  report       own    scaffold gmv\n" in told
    assert "  down:   body, head.weight, scaffold.c, gmv.mu\n" in told
    assert "  up:     body, head.weight, scaffold.delta_c, gmv.owns, gmv.mean\n" in told


@pytest.mark.parametrize(
    ("recipe", "stays", "up"),
    [("fedper", ["head.weight", "head.bias"], ["body"]), ("fedavg", [], ["body", "head.weight", "head.bias"])],
)
def test_explain_tells_what_stays_on_the_client(recipe, stays, up):
    facts = headway("explain", recipe, "--json").json
    assert (facts["stays"], facts["up"]) == (stays, up)


@pytest.mark.parametrize("name", REGISTRY.names())
def test_cite_prints_each_entry_once_in_bibtex(name):
    told = headway("cite", name).out
    keys = re.findall(r"^@(?:article|inproceedings)\{([a-z0-9]+),$", told, re.MULTILINE)
    assert len(keys) == len(set(keys)) >= 1
    assert told.count("{") == told.count("}")
    for entry in told.strip().split("\n\n"):
        assert entry.endswith("\n}")
        for field in ("title", "author", "year"):
            assert len(re.findall(rf"^  {field} = {{.+}},?$", entry, re.MULTILINE)) == 1


def test_cite_names_every_paper_of_a_recipe_and_no_paper_twice():
    told = headway("cite", "fedetf+ccvr").out  # both pieces of fedetf are from one paper
    assert re.findall(r"@\w+\{(\w+),", told) == ["mcmahan2017fedavg", "li2023fedetf", "luo2021ccvr"]


def test_cite_is_not_wrapped_to_the_terminal():
    assert max(map(len, headway("cite", "fedetf").out.splitlines())) > 100
