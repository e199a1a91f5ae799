"""Defects seen in public implementations: each would pass unnoticed, so each has a test that would fail here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toy import Normed, OneWeight, assert_same, batch_of, fixed, local_of, one_round, skewed, task_of, watching

from headway import rounds
from headway.client import Pull
from headway.engine import LocalEngine
from headway.methods import recipe as parse
from headway.methods.clsprox import ClsProx
from headway.methods.feddyn import FedDyn
from headway.methods.fednova import FedNova
from headway.methods.prox import Prox
from headway.moments import Moments
from headway.tree import mean

X = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
Y = [0, 1, 0, 1, 1]


def normed(**given):
    return task_of(X, Y, [[0, 1], [2, 3, 4]], body=Normed, **given)


def test_ccvr_pools_unbiased_covariances_under_the_n_minus_1_weights() -> None:
    # clients of 2 and 3: dividing by N at the client and weighing by N - 1 at the server loses a third and a half
    e = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 1.0], [9.0, 3.0], [4.0, 8.0]], dtype=torch.float64)
    parts = [e[:2], e[2:]]
    task = task_of(e, [0] * 5, [[0, 1], [2, 3, 4]], classes=2, body=lambda: OneWeight(1.0, 2))
    recipe = parse("ccvr")
    answers = list(LocalEngine().survey(recipe, task, task.net(recipe)))
    pooled = Moments.pool([a["ccvr"]["0"] for a in answers]).cov.numpy()
    np.testing.assert_allclose(pooled, np.cov(e.T.numpy(), ddof=1), rtol=1e-6)
    mu = e.mean(0)
    biased = sum((len(p) - 1) * torch.from_numpy(np.cov(p.T.numpy(), ddof=0)) for p in parts) / 4
    biased = biased + sum(len(p) * torch.outer(p.mean(0) - mu, p.mean(0) - mu) for p in parts) / 4
    assert float(np.abs(pooled - biased.numpy()).max()) > 0.5


@pytest.mark.parametrize("base", ["fedexp", "scaffold(server_lr=3)", "fedavgm(server_lr=3)", "fedadam", "feddyn"])
def test_server_optimisers_do_not_extrapolate_running_statistics(base: str) -> None:
    server, reports, _ = one_round(base, normed())
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    assert float(server.stats["body.bn.running_var"].min()) > 0


@pytest.mark.parametrize("base", ["fedavg", "fedexp", "fednova", "scaffold", "fedyogi", "feddyn", "perfedavg"])
def test_running_statistics_are_averaged_and_not_left_at_the_start_or_at_one_client(base: str) -> None:
    server, reports, _ = one_round(base, normed())
    first = normed().first_stats(parse("fedavg"))
    for name, v in server.stats.items():
        assert not torch.equal(v, first[name])
        assert not torch.equal(v, reports[0].stats[name])
        assert not torch.equal(v, reports[1].stats[name])


@pytest.mark.parametrize("head", ["babu", "etf", "sphere", "etfproj", "proto"])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fednova", "feddyn", "fedadam", "perfedavg"])
def test_weight_decay_and_momentum_do_not_move_a_frozen_classifier(head: str, base: str) -> None:
    task = skewed(2, train_size=60, momentum=0.9, weight_decay=1.0, epochs=2, lr=0.01)
    seen = []

    class Looking(LocalEngine):
        def train(self, recipe, task, cast, ids):
            original = task.working_net
            object.__setattr__(task, "working_net", lambda r: seen.append(original(r)) or seen[-1])
            try:
                return super().train(recipe, task, cast, ids)
            finally:
                object.__delattr__(task, "working_net")

    recipe = parse(f"{base}+{head}")
    one_round(recipe, task, engine=Looking())
    wanted = rounds.global_net(rounds.begin(recipe, task), recipe, task).head.weight
    assert len(seen) == 2
    assert all(torch.equal(net.head.weight, wanted) for net in seen)


def test_weight_decay_and_momentum_leave_a_resting_body_alone() -> None:
    # fedrep's head phase: the body is absent from the optimiser, not merely without a gradient
    seen: list[torch.Tensor] = []
    recipe = watching(
        lambda batch, local: seen.append(local.net.body.fc1.weight.detach().clone()),
        "fedrep(head_epochs=3,body_epochs=2)",
    )
    task = skewed(1, partition="iid", train_size=60, batch_size=20, momentum=0.9, weight_decay=1.0, lr=0.01)
    one_round(recipe, task)
    first = task.first_params(parse("fedrep"))["body.fc1.weight"]
    assert len(seen) == 15
    assert all(torch.equal(w, first) for w in seen[:10])  # nine steps of the head, and the start of the body's phase
    assert not torch.equal(seen[10], first)


def test_scaffolds_controls_exist_for_parameters_only_and_are_written_back() -> None:
    task = normed()
    server, _, engine = one_round("scaffold", task)
    params = set(task.first_params(parse("scaffold")))
    assert set(server.kept["scaffold"]["c"]) == params
    first = engine.store.get(0).kept["scaffold"]["c"]
    assert set(first) == params
    assert float(first.sq_norm()) > 0
    _, _, engine = one_round("scaffold", task, server, engine)
    second = engine.store.get(0).kept["scaffold"]["c"]
    assert float((second - first).sq_norm()) > 0  # the next round starts from them and changes them again


def test_scaffolds_controls_skip_a_frozen_classifier() -> None:
    server, _, _ = one_round("scaffold+etf", skewed(2, train_size=60))
    assert not any(name.startswith("head.") for name in server.kept["scaffold"]["c"])


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fedper", "local", "ditto", "perfedavg"])
def test_clients_smaller_than_a_batch_train(n: int, base: str) -> None:
    task = task_of(
        [2.0] * n, [0] * n, [list(range(n))], body=lambda: OneWeight(0.5), first=fixed([[1.0], [-1.0]]), batch_size=64
    )
    _, reports, engine = one_round(base, task)
    assert reports[0].steps == 1
    client = engine.store.get(0)
    u = reports[0].w.get("body.u", client.personal.get("body.u") if client else None)
    assert float(u) > 0.5


def test_the_last_incomplete_batch_trains() -> None:
    _, reports, _ = one_round("fedavg", skewed(1, partition="iid", train_size=70, batch_size=32))
    assert reports[0].steps == 3


def test_fedprox_squares_the_norm() -> None:
    # mu/2 ||(3, 4)||^2 = 0.1/2 * 25 = 1.25; the norm alone would give 0.25, and a constant pull
    task = task_of([[1.0, 1.0]], [0], [[0]], body=lambda: OneWeight(1.0, 2), first=fixed([[0.0, 0.0]] * 2), bias=False)
    local = local_of(task, "prox")
    with torch.no_grad():
        local.net.head.weight[0] += torch.tensor([3.0, 4.0])
    value = Prox(mu=0.1).penalty(batch_of(local), local)
    assert value.item() == pytest.approx(1.25)
    value.backward()
    assert local.net.head.weight.grad[0].tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(
    "piece", [Prox(mu=0.1), ClsProx(mu=0.1), FedNova(mu=0.1), FedDyn(alpha=0.1), Pull(mu=0.1)], ids=lambda p: p.name
)
def test_every_proximal_term_is_a_square(piece) -> None:
    # twice as far is four times the price
    task = skewed(1, partition="iid", train_size=10)
    prices = []
    for far in (1.0, 2.0):
        local = local_of(task, "fedavg", kept={"g": task.first_params(parse("fedavg")).zeros()})
        with torch.no_grad():
            local.net.head.weight += far
        prices.append(piece.penalty(batch_of(local), local).item())
    assert prices[0] == pytest.approx(0.05 * 10 * task.dim, rel=1e-4)
    assert prices[1] == pytest.approx(4 * prices[0], rel=1e-4)
