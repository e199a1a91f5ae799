"""FedProto: class prototypes are sent, features are pulled to them; with `ownmodel` nothing else is sent."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from toy import (
    OneWeight,
    arrived_at,
    assert_same,
    batch_of,
    head_step,
    local_of,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.base.tree import Tree
from headway.core.state import Report
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.parts.nearest_head import NearestHead
from headway.methods.protoalign import ProtoAlign
from headway.training import rounds


def report(k: int, n: list[int], mean: list[list[float]]) -> Report:
    return Report(k, sum(n), 1, Tree(), Tree(), {"n": torch.tensor(n), "mean": torch.tensor(mean)})


REPORTS = [
    report(0, [3, 0, 0], [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]),
    report(1, [1, 2, 0], [[5.0, -2.0], [7.0, 7.0], [0.0, 0.0]]),
]
KEPT = {"proto": torch.tensor([[9.0, 9.0], [9.0, 9.0], [4.0, 3.0]]), "known": torch.tensor([True, False, True])}


@pytest.mark.parametrize(("average", "row"), [("uniform", [3.0, 0.0]), ("weighted", [2.0, 1.0])])
def test_prototypes_are_means_over_the_owners(average: str, row: list[float]) -> None:
    # class 0: (1, 2) of 3 samples and (5, -2) of 1; uniform (6/2, 0), weighted (8/4, 4/4); class 1 has one owner
    kept = ProtoAlign(average=average).absorb(arrived_at(Tree(), REPORTS, kept=KEPT))
    assert kept["proto"].tolist() == [row, [7.0, 7.0], [4.0, 3.0]]  # class 2: nobody has it, it keeps its prototype
    assert kept["known"].tolist() == [True, True, True]


def test_a_class_nobody_ever_had_stays_unknown() -> None:
    first = ProtoAlign().init_server(Tree(), SimpleNamespace(dim=2, classes=3))
    assert ProtoAlign().absorb(arrived_at(Tree(), REPORTS, kept=first))["known"].tolist() == [True, True, False]


def pulled(known: list[bool]) -> torch.Tensor:
    """h = (3, 4) of class 0 and (0, 2) of class 1; prototypes (1, 1) and (0, 0)."""
    task = task_of([[3.0, 4.0], [0.0, 2.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, 2))
    sent = {"proto": torch.tensor([[1.0, 1.0], [0.0, 0.0]]), "known": torch.tensor(known)}
    local = local_of(task, "protoalign", sent=sent)
    return ProtoAlign(weight=0.4).penalty(batch_of(local), local)


def test_penalty_by_hand() -> None:
    # ||(2, 3)||^2 + ||(0, 2)||^2 = 13 + 4, over B d = 4, times 0.4: 1.7
    assert pulled([True, True]).item() == pytest.approx(1.7)


def test_unknown_classes_are_not_pulled_to_the_origin() -> None:
    assert pulled([True, False]).item() == pytest.approx(1.3)
    assert pulled([False, False]).item() == 0


def test_clients_send_class_means_and_counts_of_the_final_model() -> None:
    task = two_clients(start=1.0)
    _, reports, _ = one_round("protoalign+babu", task)
    for r, (mean, c) in zip(reports, [(2.0, 0), (1.5, 1)], strict=True):
        sent = r.sent["protoalign"]
        assert float(sent["mean"][c]) == pytest.approx(mean * float(r.w["body.u"]), rel=1e-6)
        assert float(sent["mean"][1 - c]) == 0
        assert sent["n"].tolist() == ([1, 0] if c == 0 else [0, 2])


def test_fedproto_by_hand_over_two_rounds() -> None:
    # round 1: no prototype, plain CE. Round 2: dL/du += lambda 1/B sum 2 (u x - P) x, each client from its own u
    _, engine = several("fedproto(weight=0.5)", two_clients(start=1.0), 2)
    for k, (xs, y) in enumerate([([2.0], 0), ([1.0, 2.0], 1)]):
        u, a = 1.0, 1.0
        u, a = u - 0.1 * slope(u, xs, y, scale=a), a - 0.1 * head_step(u, a, xs, y)
        target = u * sum(xs) / len(xs)  # the only owner's mean
        pull = 0.5 * sum(2 * (u * x - target) * x for x in xs) / len(xs)
        u, a = u - 0.1 * (slope(u, xs, y, scale=a) + pull), a - 0.1 * head_step(u, a, xs, y)
        assert float(engine.store.get(k).personal["body.u"]) == pytest.approx(u, rel=1e-4)


def test_fedproto_sends_prototypes_and_no_model() -> None:
    recipe, task = parse("fedproto"), skewed(3, train_size=90)
    server, reports, _ = one_round(recipe, task)
    cast = rounds.cast_of(server, recipe)
    assert cast.w == {}
    assert cast.nbytes() == task.classes * task.dim * 4 + task.classes
    assert all(r.w == {} and set(r.sent) == {"protoalign"} for r in reports)
    assert not rounds.has_global_model(recipe, task)
    assert rounds.personal_phases(recipe, task) == []


def test_fedproto_clients_keep_their_own_models() -> None:
    recipe, task = parse("fedproto"), skewed(3, train_size=90)
    server, engine = several(recipe, task, 2)
    own = [engine.store.get(k).personal for k in range(3)]
    assert not torch.equal(own[0]["head.weight"], own[1]["head.weight"])
    assert_same(server.w, task.first_params(recipe))


def test_fedproto_trains_only_the_sampled_clients() -> None:
    task = skewed(4, train_size=120, sampling=0.5)
    _, reports, engine = one_round("fedproto", task)
    assert [r.client for r in reports] == task.sampling(0) == engine.store.ids()


def test_protoalign_beside_model_averaging_is_legal() -> None:
    server, reports, _ = one_round("fedavg+protoalign", skewed(3, train_size=90))
    assert set(reports[0].w) == set(server.w)
    assert server.kept["protoalign"]["known"].any()


# ---- prediction by the nearest prototype


def test_nearest_head_answers_minus_the_squared_distance_where_a_prototype_is_known() -> None:
    head = NearestHead(2, 3, torch.Generator())
    head.proto.copy_(torch.tensor([[0.0, 0.0], [3.0, 4.0], [9.0, 9.0]]))
    head.known.copy_(torch.tensor([1.0, 1.0, 0.0]))
    z = head.personal(torch.tensor([[3.0, 0.0]]))
    assert z.flatten().tolist() == pytest.approx([-9.0, -16.0, -math.inf])
    head.known.zero_()
    h = torch.tensor([[3.0, 0.0]])
    assert torch.equal(head.personal(h), head(h))  # no prototype yet: the linear classifier


def test_fedproto_nearest_predicts_by_the_servers_prototypes_and_trains_the_same() -> None:
    task = skewed(4, train_size=200)
    a, b = "fedavg+ownmodel+protoalign(predict=nearest)", "fedproto"
    (server, engine), (_, other) = several(a, task, 3), several(b, task, 3)
    assert_same(engine.store.get(0).personal, other.store.get(0).personal)
    recipe = parse(a)
    cast = rounds.cast_of(server, recipe)
    results = {r.client: r for r in engine.personal(recipe, task, cast, [0, 1], [], True)}
    tensors = results[0].tensors
    assert_same(tensors["head.proto"], server.kept["protoalign"]["proto"])
    net = task.net(recipe).load(tensors).eval()
    x, y = task.test(0)
    h = net.features_of(x)
    gap = ((h[:, None] - tensors["head.proto"][None]) ** 2).sum(2)
    gap[:, tensors["head.known"] == 0] = math.inf
    assert results[0].last == int((gap.argmin(1) == y).sum())


def test_a_finetuning_never_meets_the_infinite_logits_of_unknown_classes() -> None:
    task = skewed(4, train_size=200)
    recipe = parse("fedavg+protoalign(predict=nearest)+ft(epochs=1)")
    engine = LocalEngine()
    server = rounds.run(recipe, task, engine, 1)
    phases = rounds.personal_phases(recipe, task)
    (result,) = engine.personal(recipe, task, rounds.cast_of(server, recipe), [0], phases, True)
    assert all(torch.isfinite(v).all() for v in result.tensors.values())
