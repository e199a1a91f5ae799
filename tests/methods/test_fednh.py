"""FedNH: unit prototypes as the classifier, moved by the server towards class means."""

from __future__ import annotations

import math

import pytest
import torch
import toy
from toy import OneWeight, arrived_at, fixed, local_of, one_round, several, skewed, task_of, watching

from headway.base.tree import Tree, stream
from headway.core.state import Report
from headway.methods import recipe as parse
from headway.methods.fednh import Proto, spread_rows
from headway.training import rounds


def t(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows)


def report(k: int, n: list[int], mu: list[list[float]]) -> Report:
    return Report(k, sum(n), 1, Tree(), Tree(), {"n": torch.tensor(n), "mu": t(mu)})


def plane(**given):
    """h = u x in the plane: client 0 holds two samples of class 0, client 1 one of class 0 and one of class 1."""
    x, y = [[3.0, 4.0], [4.0, 3.0], [0.0, 2.0], [-5.0, 0.0]], [0, 0, 0, 1]
    return task_of(x, y, [[0, 1], [2, 3]], classes=2, body=lambda: OneWeight(1.0, 2), **given)


@pytest.mark.parametrize(("dim", "classes"), [(64, 10), (3, 3), (2, 5), (4, 10)])
def test_first_rows_are_unit_and_orthogonal_where_that_is_possible(dim: int, classes: int) -> None:
    W = spread_rows(dim, classes, stream("w", dim))
    assert W.shape == (classes, dim)
    assert torch.allclose(W.norm(dim=1), torch.ones(classes), atol=1e-6)
    if classes <= dim:
        assert torch.allclose(W @ W.T, torch.eye(classes), atol=1e-6)


def test_logits_are_s_w_unit_h() -> None:
    recipe, task = parse("proto"), plane()
    server = rounds.begin(recipe, task)
    server.w["head.scale"].fill_(7.0)
    net = rounds.global_net(server, recipe, task)
    expected = 7 * t([[0.6, 0.8]]) @ net.head.weight.T
    assert torch.allclose(net(t([[3.0, 4.0]])), expected, atol=1e-6)


def test_s_starts_at_one_and_learns_and_w_is_no_parameter() -> None:
    task = skewed(2, train_size=60, lr=0.5)
    first = task.first_params(parse("proto"))
    assert float(first["head.scale"]) == 1
    server, reports, _ = one_round("proto", task)
    assert "head.weight" not in server.w
    assert "head.weight" not in reports[0].w
    assert float(server.w["head.scale"]) != 1


def test_client_means_by_hand() -> None:
    # client 0: (0.6, 0.8) and (0.8, 0.6), mean (0.7, 0.7), unit (1, 1)/sqrt 2; client 1: (0, 1) and (-1, 0)
    task = plane()
    half = 1 / math.sqrt(2)
    for k, n, mu in ((0, [2, 0], [[half, half], [0.0, 0.0]]), (1, [1, 1], [[0.0, 1.0], [-1.0, 0.0]])):
        sent, kept = Proto().report(Tree(), local_of(task, "proto", k))
        assert sent["n"].tolist() == n
        assert torch.allclose(sent["mu"], t(mu), atol=1e-6)
        assert kept == {}


def test_means_are_of_unit_features() -> None:
    # 100 (1, 0) and (0, 1): unit features weigh alike, so the mean points along (1, 1)
    task = task_of([[100.0, 0.0], [0.0, 1.0]], [0, 0], [[0, 1]], body=lambda: OneWeight(1.0, 2))
    sent, _ = Proto().report(Tree(), local_of(task, "proto"))
    assert torch.allclose(sent["mu"][0], torch.full((2,), 1 / math.sqrt(2)), atol=1e-6)


def test_server_moves_prototypes_by_hand() -> None:
    # class 0: n = (3, 1), mu = (1, 0), (0, 1): W' = unit (3/4, 1/4) = (3, 1)/sqrt 10;
    # W = unit(0.5 (0, 1) + 0.5 (3, 1)/sqrt 10)
    kept = {"W": t([[0.0, 1.0], [1.0, 0.0], [0.6, 0.8]])}
    reports = [
        report(0, [3, 0, 0], [[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]),
        report(1, [1, 2, 0], [[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]]),
    ]
    W = Proto(rho=0.5).absorb(arrived_at(Tree(), reports, kept=kept))["W"]
    moved = 0.5 * t([[0.0, 1.0]]) + 0.5 * t([[3.0, 1.0]]) / math.sqrt(10)
    assert torch.allclose(W[0], moved[0] / moved.norm(), atol=1e-6)
    assert torch.allclose(W[1], t([[1.0, -1.0]])[0] / math.sqrt(2), atol=1e-6)
    assert torch.equal(W[2], kept["W"][2])  # nobody has class 2: it keeps its row, bit for bit


def test_absent_classes_keep_their_row_even_without_inertia() -> None:
    reports = [report(0, [5, 0], [[0.0, 1.0], [0.0, 0.0]])]
    W = Proto(rho=0.0).absorb(arrived_at(Tree(), reports, kept={"W": t([[1.0, 0.0], [0.6, 0.8]])}))["W"]
    assert W.tolist() == t([[0.0, 1.0], [0.6, 0.8]]).tolist()


@pytest.mark.parametrize(("rho", "row"), [(0.0, [0.0, 1.0]), (1.0, [1.0, 0.0])])
def test_rho_is_the_inertia(rho: float, row: list[float]) -> None:
    W = Proto(rho=rho).absorb(arrived_at(Tree(), [report(0, [5], [[0.0, 1.0]])], kept={"W": t([[1.0, 0.0]])}))["W"]
    assert torch.allclose(W[0], torch.tensor(row))


def test_a_round_by_hand() -> None:
    # h = u x has the direction of x whatever u: mu as above. Class 0: (2 (1,1)/sqrt 2 + (0, 1))/3; class 1: (-1, 0)
    recipe, task = parse("proto(rho=0.9)"), plane()
    first = rounds.begin(recipe, task)
    W0 = task.net(recipe).head.weight  # everybody starts from the same one
    server, _, _ = one_round(recipe, task, first)
    fresh = t([[2 / math.sqrt(2), 2 / math.sqrt(2) + 1], [-1.0, 0.0]])
    fresh = fresh / fresh.norm(dim=1, keepdim=True)
    moved = 0.9 * W0 + 0.1 * fresh
    assert torch.allclose(server.kept["proto"]["W"], moved / moved.norm(dim=1, keepdim=True), atol=1e-6)
    assert float(server.w["body.u"]) == pytest.approx(1.0, abs=1e-6)  # the direction does not depend on u


def test_clients_train_under_the_servers_prototypes() -> None:
    seen = []
    recipe = watching(lambda batch, local: seen.append(local.net.head.weight.detach().clone()), "proto(rho=0.1)")
    task = skewed(2, train_size=60, epochs=2, momentum=0.9, weight_decay=0.1)
    server, _, engine = one_round(recipe, task)
    first = torch.stack(seen)
    assert (first == first[0]).all()  # SGD, momentum and weight decay leave W alone
    seen.clear()
    one_round(recipe, task, server, engine)
    assert all(torch.equal(w, server.kept["proto"]["W"]) for w in seen)
    assert not torch.equal(seen[0], first[0])


def test_rows_stay_unit_and_the_global_model_uses_them() -> None:
    recipe, task = parse("proto"), skewed(4, train_size=200, lr=0.5)
    server, _ = several(recipe, task, 3)
    W = server.kept["proto"]["W"]
    assert torch.allclose(W.norm(dim=1), torch.ones(10), atol=1e-6)
    assert torch.equal(rounds.global_net(server, recipe, task).head.weight, W)
    assert not torch.equal(W, task.net(recipe).head.weight)


def test_more_classes_than_features() -> None:
    # d = 2 < C = 5: rows cannot be orthogonal, but they are unit and it trains
    x = [[math.cos(a), math.sin(a)] for a in range(5)]
    task = task_of(x, [0, 1, 2, 3, 4], [[0, 1, 2], [3, 4]], classes=5, body=lambda: OneWeight(1.0, 2))
    server, _ = several("proto", task, 2)
    assert torch.allclose(server.kept["proto"]["W"].norm(dim=1), torch.ones(5), atol=1e-6)
    assert all(v.isfinite().all() for v in server.w.values())


def test_what_is_sent_is_means_counts_and_prototypes() -> None:
    # up: C d + C besides the model; down: C d
    recipe, task = parse("proto"), skewed(2, train_size=60)
    server, reports, engine = one_round(recipe, task)
    assert set(reports[0].sent["proto"]) == {"mu", "n"}
    assert set(rounds.cast_of(server, recipe).sent["proto"]) == {"W"}
    _, reports, _ = one_round(recipe, task, server, engine)
    assert set(reports[0].sent["proto"]) == {"mu", "n"}


def test_the_first_prototypes_depend_on_the_seed() -> None:
    W = [skewed(2, train_size=30, seed=s).net(parse("proto")).head.weight for s in (0, 1)]
    assert not torch.equal(W[0], W[1])


def test_first_is_ignored_by_a_prototype_head() -> None:
    # a model's own first classifier is not a set of prototypes
    recipe = parse("proto")
    task = task_of([[1.0, 0.0]], [0], [[0]], body=lambda: OneWeight(1.0, 2), first=fixed([[5.0, 5.0], [5.0, 5.0]]))
    W = rounds.global_net(rounds.begin(recipe, task), recipe, task).head.weight
    assert torch.allclose(W @ W.T, torch.eye(2), atol=1e-6)


def test_fednhs_prototypes_start_on_the_server():
    recipe, task = parse("fednh"), toy.skewed(3, train_size=90)
    server = rounds.begin(recipe, task)
    toy.assert_same(server.kept["proto"]["W"], task.net(recipe).frozen()["head.weight"])
    _, reports, _ = toy.one_round(recipe, task)
    assert sorted(reports[0].sent["proto"]) == ["mu", "n"]
