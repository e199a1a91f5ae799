"""Folding: how the hooks of several pieces become one, by the mark of each hook."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from toy import OneWeight, local_of, task_of

from headway.base.errors import RecipeError
from headway.base.tree import Tree
from headway.core.arrived import Arrived
from headway.core.phase import Phase, Step
from headway.core.piece import HOOKS, Piece
from headway.core.recipe import Recipe
from headway.core.state import Report


@dataclass(frozen=True)
class Times(Piece):
    name, slot = "a_times", "reg"  # the order of pieces that nobody registered is that of their names
    factor: float = 3.0

    def requires(self):
        return {"server"}

    def step(self, step, name):
        return Step(self.factor * step.rate, step.momentum, step.decay)

    def correct(self, g, local):
        return self.factor * g

    def penalty(self, batch, local):
        return torch.tensor(self.factor)

    def broadcast(self, kept):
        return {"heard": kept.get("own")}

    def equip(self, sent, counts):
        return Tree({"head.mark": torch.tensor(sent["own"])})

    def evaluated(self, w, kept):
        return self.factor * w

    def phases(self, epochs):
        return [Phase(2 * epochs)]


class Plus(Piece):
    name, slot = "b_plus", "reg"

    def requires(self):
        return {"global body"}

    def step(self, step, name):
        return Step(step.rate + 1, step.momentum, step.decay)

    def correct(self, g, local):
        return g + 1.0

    def penalty(self, batch, local):
        return torch.tensor(5.0)

    def broadcast(self, kept):
        return {"heard": kept.get("own")}

    def evaluated(self, w, kept):
        return w + kept["own"]

    def absorb(self, arrived):
        return {"kept": arrived.kept, "sent": [r.sent for r in arrived.reports]}


BOTH = Recipe((Plus(), Times()))
NOTES = {"a_times": {"own": 7.0}, "b_plus": {"own": 2.0}}


def local():
    return local_of(task_of([1.0], [0], [[0]], body=OneWeight), "fedavg", kept={}, sent={})


def test_every_hook_is_folded_by_a_recipe() -> None:
    assert all(hook in vars(Recipe) for hook in HOOKS)


def test_a_chain_goes_from_piece_to_piece() -> None:
    # 2 -> 3 * 2 = 6 -> 6 + 1; the other way round it would be 9
    assert float(BOTH.correct(Tree({"u": torch.tensor(2.0)}), local())["u"]) == 7.0
    assert BOTH.step(Step(0.5, 0.9, 0.0), "body.u") == Step(0.5 * 3 + 1, 0.9, 0.0)


def test_a_chain_over_notes_passes_by_who_kept_nothing() -> None:
    w = Tree({"u": torch.tensor(1.0)})
    assert float(BOTH.evaluated(w, NOTES)["u"]) == 3 * 1 + 2
    assert float(BOTH.evaluated(w, {"b_plus": {"own": 2.0}})["u"]) == 1 + 2
    assert BOTH.evaluated(w, {}) is w


def test_a_total_adds_up_and_is_zero_where_nobody_answers() -> None:
    assert float(BOTH.penalty(None, local())) == 3 + 5
    assert float(Recipe((Twin(),)).penalty(None, local())) == 0


def test_each_piece_sees_its_own_notes_and_answers_under_its_name() -> None:
    assert BOTH.broadcast(NOTES) == {"a_times": {"heard": 7.0}, "b_plus": {"heard": 2.0}}
    report = Report(0, 1, 1, Tree(), Tree(), {"a_times": {"x": 1}, "b_plus": {"y": 2}})
    arrived = Arrived(Tree(), [report], [1.0], num_clients=1, round=0, lr=0.1, kept=NOTES)
    assert BOTH.absorb(arrived) == {"b_plus": {"kept": {"own": 2.0}, "sent": [{"y": 2}]}}


def test_one_piece_decides_or_else_fedavg() -> None:
    assert BOTH.phases(5) == [Phase(10)]
    assert Recipe((Plus(),)).phases(5) == [Phase(5)]
    with pytest.raises(RecipeError, match="a_times and a_timez both decide the phases, and a recipe has one"):
        Recipe((Times(), Twin()))


class Twin(Piece):
    name, slot = "a_timez", "reg"

    def phases(self, epochs):
        return [Phase(1)]

    def head(self):
        return {"bias": False, "feat": "l2"}

    def equip(self, sent, counts):
        return Tree({"head.mark": torch.tensor(1.0)})


class Wide(Piece):
    name, slot = "wide", "head"

    def head(self):
        return {"bias": False, "scale": 2.0}


class Other(Piece):
    name, slot = "other", "loss"

    def head(self):
        return {"scale": 3.0}

    def equip(self, sent, counts):
        return Tree({"head.mark": torch.tensor(1.0)})


def test_merged_choices_are_united_and_a_clash_names_both_pieces() -> None:
    assert Recipe((Wide(), Twin())).head() == {"bias": False, "scale": 2.0, "feat": "l2"}
    with pytest.raises(RecipeError, match=r"wide sets the head's scale to 2\.0 and other to 3\.0; keep one of the two"):
        Recipe((Wide(), Other()))


def test_merged_tensors_clash_even_where_they_are_equal() -> None:
    # that two tensors are equal in this round says nothing of the next
    assert float(Recipe((Times(),)).equip({"a_times": {"own": 7.0}}, None)["head.mark"]) == 7.0
    with pytest.raises(RecipeError, match=r"sets the equip's head\.mark"):
        Recipe((Other(), Twin())).equip({}, None)


def test_traits_are_united() -> None:
    assert BOTH.requires() == {"server", "global body"}
    assert Recipe((Twin(),)).requires() == set()
