"""What is kept and what is sent: sizes, and what is worth storing."""

from __future__ import annotations

import torch

from headway.base.tree import Tree
from headway.core.state import Broadcast, Client, Report, nbytes, numbers
from headway.methods.scaffold import Scaffold


def test_bytes_are_those_of_tensors_and_four_a_number() -> None:
    tree = Tree({"u": torch.zeros(3), "v": torch.zeros(2, dtype=torch.float64)})
    assert nbytes(tree) == 3 * 4 + 2 * 8
    assert nbytes({"a": {"n": 5, "x": torch.zeros(4, dtype=torch.uint8)}, "b": [1.5]}) == 4 + 4 + 4
    report = Report(0, 1, 1, tree, Tree({"m": torch.zeros(1)}), {"scaffold": {"a": 2.0}})
    assert report.nbytes() == 28 + 4 + 4
    assert Broadcast(0, tree, Tree(), {}).nbytes() == 28


def test_a_client_that_remembers_nothing_need_not_be_stored() -> None:
    some = Tree({"u": torch.zeros(1)})
    assert Client(0, Tree(), {}).blank
    assert Client(0, Tree(), {"prox": {}}).blank
    assert not Client(0, some, {}).blank
    assert not Client(0, Tree(), {"scaffold": {"c": some}}).blank
    assert not Client(0, Tree(), {}, momentum=some).blank


def test_a_report_of_one_piece_has_its_message() -> None:
    report = Report(0, 1, 1, Tree(), Tree(), {"scaffold": {"delta_c": 1}, "gmv": {"owns": 2}})
    assert report.of(Scaffold()).sent == {"delta_c": 1}


def test_the_plain_numbers_among_notes_are_for_the_metrics() -> None:
    notes = {"fedexp": {"eta_g": 1.5, "last": Tree(), "on": True}, "scaffold": {"c": Tree()}}
    assert numbers(notes) == {"fedexp.eta_g": 1.5}
