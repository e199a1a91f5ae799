"""The method cards: one for every piece, complete, and the same as the code says today."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from headway.analysis import cards
from headway.methods import REGISTRY, recipe
from headway.methods.guide import guide, guides
from headway.methods.prox import Prox

DOCS = Path(__file__).parents[2] / "docs" / "methods"
PIECES = {p.name: p for p in REGISTRY.pieces}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    cards.main(str(folder))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_cards_in_docs_are_what_the_code_says(written):
    stored = {path.name: path.read_bytes() for path in DOCS.iterdir()}
    stale = sorted(name for name in written.keys() | stored.keys() if written.get(name) != stored.get(name))
    assert not stale, f"docs/methods: {', '.join(stale)} are not what the code says; run `make cards`"


def test_writing_them_again_changes_nothing_and_removes_cards_of_lost_pieces(written, tmp_path):
    (tmp_path / "gone.md").write_text(f"{cards.MAKE} a piece that is no more")
    cards.main(str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written


def test_pages_of_other_people_are_left_alone(tmp_path):
    (tmp_path / "notes.md").write_text("mine")
    cards.main(str(tmp_path))
    assert (tmp_path / "notes.md").read_text() == "mine"
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(SystemExit, match=r"README\.md there is no card; give a folder of its own"):
        cards.main(str(tmp_path))
    assert (tmp_path / "README.md").read_text() == "mine"


def test_every_piece_has_a_card_and_a_line_in_the_index(written):
    assert set(written) == {f"{name}.md" for name in PIECES} | {"README.md"}
    index = written["README.md"].decode()
    assert re.findall(r"^\| \[(\w+)\]\(\1\.md\)", index, re.MULTILINE) == list(PIECES)


@pytest.mark.parametrize("name", PIECES)
def test_a_card_has_every_section_and_stays_short(written, name):
    text = written[f"{name}.md"].decode()
    assert f"\n# {name}\n" in text
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(cards.SECTIONS)
    assert all(body.strip() for body in re.split(r"^## .*$", text, flags=re.MULTILINE))
    assert text.count("\n") <= 100
    for f in fields(PIECES[name]):
        assert f"| `{f.name}` | `{f.default}` |" in text


def test_every_alias_is_on_one_card(written):
    lines = [re.search(r"Aliases: (.*)", text.decode()) for name, text in written.items() if name != "README.md"]
    listed = [alias for line in lines for alias in re.findall(r"`([^`]+)` =", line[1])]
    assert sorted(listed) == sorted(REGISTRY.aliases)


@pytest.mark.parametrize(
    ("alias", "piece"),
    [("fedprox", "prox"), ("fedetf", "etfproj"), ("fedrs", "restricted"), ("fedproto", "protoalign"),
     ("ft", "finetune"), ("spherefed-mse", "sphere"), ("dual", "fedrod")],
)  # fmt: skip
def test_an_alias_is_on_the_card_of_the_piece_it_is_about(alias, piece):
    assert alias in cards.aliases(PIECES[piece])


def test_no_card_shows_a_path_of_a_machine(written):
    for name, text in written.items():
        assert not re.search(r"/(?:work|home|root|tmp|Users)/", text.decode()), name


# ---- the guide
def test_the_guide_speaks_of_pieces_and_settings_that_exist():
    for name, g in guides().items():
        assert name in PIECES
        assert set(g.papers) <= {f.name for f in fields(PIECES[name])}, name
        assert name in [p.name for p in recipe(g.recipe).pieces]


def test_a_piece_without_a_guide_still_has_one():
    assert guide("brand_new").recipe == "brand_new"
    assert guide("brand_new").pitfalls == ()


# ---- equations
def test_equations_are_the_source_without_types():
    assert cards.equations(Prox) == (
        "```python\n"
        "def step(step, name):\n"
        "    return replace(step.plain() if self.plain_sgd else step, pull=step.pull + self.mu)\n\n"
        "def penalty(batch, local):  # Eq. (2): mu/2 ||w - w^t||^2\n"
        "    return self.mu / 2 * (local.w - local.w0).sq_norm()\n"
        "```"
    )


def test_a_function_inside_another_is_shown_once():
    shown = cards.equations(PIECES["one_step"])  # its `personalise` makes a function `step`
    assert shown.count("def step(") == 1


def test_the_guide_names_functions_that_exist():
    named = [place.split(":") for g in guides().values() for place in g.source]
    assert all(cards.function(module, name).name == name.split(".")[-1] for module, name in named)


def test_refusals_traits_and_pragmas_are_left_out():
    for piece in REGISTRY.pieces:
        text = cards.equations(piece)
        assert not re.search(r"^def (requires|provides|check|bound_of)\(", text, re.MULTILINE)
        assert "RecipeError" not in text
        assert "type: ignore" not in text
        assert "fmt:" not in text


# ---- bytes
def test_bytes_are_those_of_a_real_round():
    base, scaffold, alone = (cards.traffic(text) for text in ("fedavg", "scaffold", "local"))
    assert scaffold.down == 2 * base.down  # w and c
    assert scaffold.up == 2 * base.up  # w_k and the change of c_k
    assert (alone.down, alone.up, alone.up_parts) == (0, 0, ())


def test_the_memory_is_counted_once_it_exists():
    t, etf = cards.traffic("fedavg+etf+gmv"), cards.traffic("fedavg+etf")
    classes, dim = cards.toy().classes, cards.toy().dim
    assert t.down - etf.down == 4 * classes * dim  # mu, [C, d] floats
    assert "gmv.mu" in t.down_parts
    assert "gmv.mean" in t.up_parts


def test_what_is_asked_once_is_counted_too():
    t = cards.traffic("fedavg+ccvr")
    d = cards.toy().dim
    assert t.once == cards.toy().classes * 4 * (1 + d + d * (d + 1) // 2)  # n, mean, half a covariance
    assert t.once_parts == ("ccvr: count, mean and covariance of each class",)
