"""What is sent, read off stand-ins in a process that cannot import torch, and off a real round: the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import loud
import pytest
from loud import Loud

from headway.analysis.communication import NOT_DESCRIBED, communication, explanation, imagined, leaves, measured
from headway.analysis.stand_ins import ANYTHING, without_torch
from headway.base import lazy
from headway.core import Tree
from headway.methods import REGISTRY, recipe
from headway.methods import recipe as parse
from headway.methods.guide import guide

GOLDEN = Path(__file__).parents[2] / "bench" / "golden.py"
REFUSED = ["babu+spread", "etf+fedper", "sphere+ccvr", "perfedavg+gmv", "fn+fedtc", "local+prox", "etf+fedrod"]
IMPOSSIBLE = ["proto+fedtc", "proto+fedrod"]  # refused, and their round ends in an error
SEVERAL = [
    "etf(scale=3)+fedrod(private=hyper)",
    "etfproj(temperature=fixed,d=5)+fedproto(predict=nearest)",
    "etfproj+fedtc+feddyn",
    "scaffold+ditto+moon+fedper+ccvr(global_head=mean_of_personal)",
    "local+ditto+fn",
    "fednova(gmf=0.5,mu=0.1)+fedrod(private=hyper)+gmv+moon",
    "fedexp+proto+ditto+oracle(replace_head=true)",
]

READ = """
import json, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
from headway.analysis.communication import explanation
from headway.methods import recipe
print(json.dumps({text: explanation(recipe(text)) for text in json.load(sys.stdin)}))
"""


def python(code: str, given: object = None) -> str:
    """What a fresh process prints."""
    end = subprocess.run([sys.executable, "-c", code], input=json.dumps(given), capture_output=True, text=True)
    assert end.returncode == 0, end.stderr
    return end.stdout


def with_other_settings() -> list[str]:
    """Every piece with each choice and switch that is not its default."""
    found = []
    for piece in REGISTRY.pieces:
        for f in fields(piece):
            values = ("true", "false") if isinstance(f.default, bool) else f.metadata["choices"]
            found += [f"{piece.name}({f.name}={v})" for v in values if v != str(f.default).lower()]
    return found


def texts() -> list[str]:
    """Every piece and named recipe, and the compositions of bench/golden.py."""
    spec = spec_from_file_location("golden", GOLDEN)
    assert spec is not None
    assert spec.loader is not None
    golden = module_from_spec(spec)
    spec.loader.exec_module(golden)
    several = [*golden.COMPANY.values(), *golden.COMPOSITIONS.split(), *SEVERAL, *REFUSED]
    return list(dict.fromkeys([*REGISTRY.names(), *several, *with_other_settings()]))


TEXTS = texts()


@pytest.fixture(scope="module")
def without() -> dict[str, dict[str, object]]:
    """What every recipe is said to do by a process that cannot import torch."""
    return json.loads(python(READ, [*TEXTS, *IMPOSSIBLE]))


@pytest.mark.parametrize("text", TEXTS)
def test_without_torch_the_answer_is_that_of_the_real_round(text, without):
    real = measured(recipe(text))
    assert list(real) == ["down", "up", "stays", "frozen", "once"]
    assert {what: without[text][what] for what in real} == real
    assert without[text] == explanation(recipe(text))


def test_enough_is_compared():
    assert len(TEXTS) > 150


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_recipe_is_explained_too(text, without):
    assert without[text]["refused"]
    assert without[text]["up"] + without[text]["stays"]


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_a_refused_recipe_need_not_survive_a_round(text, without):
    assert without[text] == explanation(recipe(text))
    assert without[text]["refused"]
    assert without[text]["up"] == without[text]["frozen"] == []
    assert leaves(recipe(text)) == []


# ---- stand-ins
def test_a_stand_in_gives_no_number_away():
    for ask in (bool, int, iter, list, lambda v: 1 in v, lambda v: [1, 2][v]):
        with pytest.raises(TypeError):
            ask(ANYTHING)
    assert ((ANYTHING + 1).sum(0)[None] > 0) is ANYTHING


def test_a_tree_of_stand_ins_still_adds_by_name():
    tree = Tree(a=ANYTHING, b=ANYTHING)
    with without_torch():
        assert list(ANYTHING * tree + tree) == ["a", "b"]
        with pytest.raises(ValueError, match="differ"):
            tree - Tree(a=ANYTHING)


def test_torch_is_back_afterwards():
    imagined(recipe("scaffold"))
    with pytest.raises(TypeError):
        imagined(REGISTRY.sum_of([Loud()]))
    assert float(lazy.torch.ones(2).sum()) == 2
    assert float(lazy.F.relu(lazy.torch.ones(()))) == 1


# ---- pieces of users
FACTS = {
    "down": ["body", "head.weight", "head.bias", "loud.again"],
    "up": ["body", "head.weight", "head.bias", "loud.most"],
    "stays": ["loud.seen"],
    "frozen": [],
    "once": [],
}
FALLBACK = """
import json, sys
sys.path.insert(0, {helpers!r})
from headway.analysis.communication import communication
from headway.methods import REGISTRY
from loud import Loud
Loud.__module__ = {module!r}
assert "torch" not in sys.modules
print(json.dumps(communication(REGISTRY.sum_of([Loud()]))))
"""


@pytest.mark.parametrize("module", ["loud", "headway.methods.loud"])
def test_a_piece_that_needs_real_tensors_gets_a_real_round(module):
    helpers = str(Path(loud.__file__).parent)
    assert json.loads(python(FALLBACK.format(helpers=helpers, module=module))) == FACTS
    assert communication(REGISTRY.sum_of([Loud()])) == FACTS


def test_what_a_user_s_piece_sends_has_no_description():
    rows = {row["what"]: row["tells"] for row in leaves(REGISTRY.sum_of([Loud()]))}
    assert rows["loud.most"] == NOT_DESCRIBED
    assert rows["loss"] != NOT_DESCRIBED


def test_whatever_a_piece_sends_is_explained() -> None:
    for piece in REGISTRY.pieces:
        recipe = parse(guide(piece.name).recipe)
        up = communication(recipe)["up"] + [what.partition(":")[0] for what in communication(recipe)["once"]]
        rows = leaves(recipe)
        assert all(row["tells"] for row in rows)
        assert bool(rows) == bool(up)


def test_label_counts_are_named_as_such() -> None:
    rows = {row["what"]: row["tells"] for row in leaves(parse("fedproto"))}
    assert rows["protoalign.n"] == "the label counts"
    assert "body" not in " ".join(rows)  # no model leaves
    assert leaves(parse("local")) == []
