"""Local: what a hook sees on the client, and what is computed once for all pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy import OneWeight, local_of, task_of

from headway.core.local import Local
from headway.methods.prox import Prox
from headway.methods.scaffold import Scaffold

X, Y = [1.0, 3.0, 5.0], [0, 0, 2]  # h = 2 x: means 4 and 10 for classes 0 and 2; nobody has class 1


@pytest.fixture
def local() -> Local:
    task = task_of(X, Y, [[0, 1, 2]], classes=3, body=lambda: OneWeight(2.0))
    return replace(local_of(task, "fedavg"), kept={"scaffold": {"c": 1}}, sent={"scaffold": {"c": 2}})


def test_counts_and_class_means_by_hand(local) -> None:
    assert local.counts.tolist() == [2, 0, 1]
    assert local.class_means().flatten().tolist() == [4.0, 0.0, 10.0]


def test_class_means_are_computed_once_until_the_model_has_trained(local) -> None:
    first = local.class_means()
    with torch.no_grad():
        local.net.body.u.fill_(1.0)
    assert local.of(Prox()).class_means() is first  # another piece asks for the same
    assert local.trained(None).class_means().flatten().tolist() == [2.0, 0.0, 5.0]


def test_means_of_the_last_epoch_are_those_that_training_saw(local) -> None:
    seen = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([0, 1, 1])
    assert local.trained(seen).last_epoch_means().flatten().tolist() == [1.0, 4.0, 0.0]
    with pytest.raises(RuntimeError, match="features of the last epoch"):
        local.last_epoch_means()


def test_a_piece_sees_its_own_notes_in_a_view_that_is_made_once(local) -> None:
    mine = local.of(Scaffold())
    assert (mine.kept, mine.sent, mine.ready) == ({"c": 1}, {"c": 2}, {})
    assert local.of(Scaffold()) is mine
    assert local.of(Prox()).kept == {}
    ready = local.prepared({"scaffold": {"teacher": 3}})  # views of before know nothing of it
    assert ready.of(Scaffold()).ready == {"teacher": 3}


def test_gradients_flow_through_the_parameters(local) -> None:
    assert set(local.w) == set(local.w0)
    local.w["body.u"].square().backward()
    assert float(local.net.body.u.grad) == 4.0
    assert not local.w0["body.u"].requires_grad


def test_a_teacher_keeps_what_it_was_given(local) -> None:
    teacher = local.frozen(local.w0)
    with torch.no_grad():
        local.net.body.u.fill_(1.0)
    assert float(teacher.net.body.u) == 2.0


def test_what_is_known_in_training_alone_says_so_elsewhere() -> None:
    bare = Local(None, {}, None, None, 0, 0.1, None, {}, {})
    with pytest.raises(RuntimeError, match="in a client's round, not when a client personalises"):
        _ = bare.k_eff
    with pytest.raises(RuntimeError, match="in the hook `report`"):
        bare.fit({}, Prox())
