"""extra_epoch and alternate: how a global model becomes personal."""

from __future__ import annotations

import copy

import pytest
import torch
from toy import Normed, assert_same, head_step, one_round, several, skewed, slope, task_of, two_clients

from headway.base.names import in_body, in_head
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.client import personal_net


def stages(text: str, task, n: int = 0, k: int = 0):
    """[(stage, net)] of client k after n rounds."""
    recipe = parse(text)
    server, engine = several(recipe, task, n)
    cast = rounds.cast_of(server, recipe)
    phases = rounds.personal_phases(recipe, task)
    client = engine.client(recipe, task, cast, k)
    return [(stage, copy.deepcopy(net)) for stage, net in personal_net(recipe, task, cast, client, phases)]


@pytest.mark.parametrize(("text", "steps"), [("extra_epoch", 2), ("extra_epoch(epochs=5)", 5)])
def test_extra_epoch_by_hand(text: str, steps: int) -> None:
    (received, first), (trained, last) = stages(f"{text}+babu", two_clients(start=0.5, epochs=2, momentum=0.5), k=1)
    u, v = 0.5, 0.0
    for _ in range(steps):
        v = 0.5 * v + slope(u, [1.0, 2.0], 1)
        u -= 0.1 * v
    assert (received, trained) == ("received", "trained")
    assert first.body.u.item() == 0.5
    assert last.body.u.item() == pytest.approx(u, rel=1e-5)


def test_extra_epoch_is_what_a_global_method_does_unasked() -> None:
    task = skewed(2, train_size=60)
    said, unsaid = (stages(text, task, 2)[-1][1] for text in ("fedavg+extra_epoch", "fedavg"))
    assert_same(said.params().copy(), unsaid.params().copy())


def test_extra_epoch_leaves_the_rounds_and_frozen_tensors_alone() -> None:
    task = skewed(2, train_size=60)
    assert_same(one_round("extra_epoch", task)[0].w, one_round("fedavg", task)[0].w)
    net = stages("etf+extra_epoch", task, 1)[-1][1]
    assert torch.equal(net.head.weight, task.net(parse("etf")).head.weight)


def test_alternate_by_hand() -> None:
    # two steps of a under u = 1, then three of u under the new a
    _, reports, _ = one_round("alternate(head_epochs=2,body_epochs=3)", two_clients(start=1.0))
    for report, (xs, y) in zip(reports, [([2.0], 0), ([1.0, 2.0], 1)], strict=True):
        u, a = 1.0, 1.0
        for _ in range(2):
            a -= 0.1 * head_step(u, a, xs, y)
        for _ in range(3):
            u -= 0.1 * slope(u, xs, y, scale=a)
        assert float(report.w["body.u"]) == pytest.approx(u, rel=1e-5)
        assert float(report.w["head.weight"][0]) == pytest.approx(a, rel=1e-5)


def test_alternate_trains_head_then_body_for_the_tasks_epochs() -> None:
    task = skewed(2, train_size=60, epochs=2, momentum=0.9, weight_decay=0.1)
    (_, received), (one, head), (two, body) = stages("alternate", task)
    assert (one, two) == ("head", "body")
    first, mid, last = (net.params().copy() for net in (received, head, body))
    assert_same(mid.only(in_body), first.only(in_body))
    assert_same(last.only(in_head), mid.only(in_head))
    assert not torch.equal(mid["head.weight"], first["head.weight"])
    assert (last - mid).only(in_body).sq_norm() > 0
    assert [phase.epochs for phase in parse("alternate").phases(7)] == [7, 7]


def test_alternate_shares_everything_unlike_fedrep() -> None:
    task = skewed(2, train_size=60)
    _, ours, _ = one_round("alternate", task)
    _, theirs, _ = one_round("fedrep", task)
    assert set(ours[0].w) == set(task.first_params(parse("fedavg")))
    assert_same(ours[0].w.only(in_body), theirs[0].w.only(in_body))  # the very same training


def test_the_head_phase_leaves_running_statistics_alone() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed)
    (_, received), (_, head), (_, body) = stages("alternate", task)
    assert_same(head.stats(), received.stats())
    assert not torch.equal(body.stats()["body.bn.running_mean"], received.stats()["body.bn.running_mean"])
