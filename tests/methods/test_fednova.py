"""FedNova: updates divided by the gradients they hold before they are averaged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import toy
from toy import (
    Normed,
    OneWeight,
    arrived_at,
    assert_same,
    batch_of,
    fixed,
    local_of,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.base.tree import Tree, mean
from headway.core.state import Report
from headway.methods import recipe as parse
from headway.methods.fednova import FedNova
from headway.training.step_counts import effective_steps


def t(value: float) -> Tree:
    return Tree({"u": torch.tensor(value)})


def unequal(**given):
    """Client 0 holds x = 2 of class 0, client 1 twice x = 1 of class 1; batches of one: 1 and 2 steps an epoch."""
    values = {"batch_size": 1, **given}
    return task_of(
        [2.0, 1.0, 1.0], [0, 1, 1], [[0], [1, 2]], body=lambda: OneWeight(0.0), first=fixed([[1.0], [-1.0]]),
        bias=False, **values,
    )  # fmt: skip


def end_of(u: float, x: float, y: int, steps: int, rho: float = 0.0, mu: float = 0.0, lr: float = 0.1) -> float:
    """Where a client ends after so many steps."""
    w, v = u, 0.0
    for _ in range(steps):
        v = rho * v + slope(w, [x], y) + mu * (w - u)
        w -= lr * v
    return w


def weight_of(steps: int, rho: float) -> float:
    """The coefficient of all gradients together in the displacement over eta, summed one by one."""
    return sum(sum(rho**j for j in range(steps - s)) for s in range(steps))


@pytest.mark.parametrize(("rho", "epochs"), [(0.0, 1), (0.0, 2), (0.9, 2), (0.5, 3)])
def test_a_round_by_hand(rho: float, epochs: int) -> None:
    # w + (sum p_k a_k) sum p_k Delta_k / a_k, p = (1/3, 2/3), steps (E, 2 E)
    server, _, _ = one_round("fednova+babu", unequal(momentum=rho, epochs=epochs))
    a = [weight_of(epochs, rho), weight_of(2 * epochs, rho)]
    deltas = [end_of(0.0, 2.0, 0, epochs, rho), end_of(0.0, 1.0, 1, 2 * epochs, rho)]
    tau_eff = a[0] / 3 + 2 * a[1] / 3
    expected = tau_eff * (deltas[0] / a[0] / 3 + 2 * deltas[1] / a[1] / 3)
    assert float(server.w["body.u"]) == pytest.approx(expected, rel=1e-4)
    plain, _, _ = one_round("fedavg+babu", unequal(momentum=rho, epochs=epochs))
    assert abs(float(plain.w["body.u"]) - expected) > 1e-3  # and it is not FedAvg


def test_aggregation_by_hand() -> None:
    # w = 1; Delta = (2, -6), a = (1, 3), p = (1/4, 3/4): tau_eff = 10/4, mean = 2/4 - 2 * 3/4 = -1; w = 1 - 2.5
    reports = [Report(0, 1, 1, t(3.0), Tree(), {"a": t(1.0)}), Report(1, 3, 3, t(-5.0), Tree(), {"a": t(3.0)})]
    assert float(FedNova().aggregate(arrived_at(t(1.0), reports, [0.25, 0.75]))["u"]) == pytest.approx(-1.5)


def test_a_k_under_a_proximal_term() -> None:
    # eta mu = q = 0.1 * 1: (1 - 0.9^2) / 0.1 = 1.9 for two steps
    for mu, a in ((1.0, 1.9), (0.0, 2.0)):
        _, reports, _ = one_round(f"fednova(mu={mu})", two_clients(epochs=2))
        assert reports[0].sent["fednova"]["a"] == pytest.approx(a)


def test_parameters_that_step_differently_have_an_a_k_each() -> None:
    own = Tree({"u": torch.tensor(2.0), "v": torch.tensor(3.0)})
    local = replace(local_of(two_clients(), "fednova"), step_weights=lambda pulled: own)
    assert FedNova().report(Tree(), local)[0]["a"] == {"u": 2.0, "v": 3.0}


def test_the_proximal_term_pulls_to_the_received_model() -> None:
    # mu/2 (u - u0)^2 = 4/2 * 0.5^2 = 0.5, its slope 4 * 0.5 = 2
    local = local_of(two_clients(), "fednova+babu")
    with torch.no_grad():
        local.net.body.u += 0.5
    value = FedNova(mu=4.0).penalty(batch_of(local), local)
    assert value.item() == pytest.approx(0.5)
    value.backward()
    assert float(local.net.body.u.grad) == pytest.approx(2.0)


def test_a_round_with_a_proximal_solver_by_hand() -> None:
    server, _, _ = one_round("fednova(mu=2)+babu", unequal(epochs=2))
    a = [(1 - 0.8**2) / 0.2, (1 - 0.8**4) / 0.2]
    deltas = [end_of(0.0, 2.0, 0, 2, mu=2.0), end_of(0.0, 1.0, 1, 4, mu=2.0)]
    expected = (a[0] / 3 + 2 * a[1] / 3) * (deltas[0] / a[0] / 3 + 2 * deltas[1] / a[1] / 3)
    assert float(server.w["body.u"]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("recipe", ["fednova", "fednova(mu=0.1)"])
def test_equals_fedavg_when_all_a_k_are_equal(recipe: str) -> None:
    task = skewed(4, partition="iid", train_size=160, momentum=0.9, weight_decay=1e-3, epochs=2)
    assert len({task.data.size(k) for k in range(4)}) == 1
    plain = "fedprox(mu=0.1)" if "mu" in recipe else "fedavg"
    (nova, _), (other, _) = several(recipe, task, 3), several(plain, task, 3)
    for name, v in other.w.items():
        assert torch.allclose(nova.w[name], v, atol=1e-5), name


def test_slow_momentum_by_hand() -> None:
    # buf <- gmf buf + update / eta_t; w <- w + eta_t buf, and eta halves each round: the past shrinks with it
    task = unequal(lr_decay=0.5)
    server, _ = several("fednova(gmf=0.5)+babu", task, 3)
    u, buf = 0.0, 0.0
    for r in range(3):
        eta = 0.1 * 0.5**r
        deltas = [end_of(u, 2.0, 0, 1, lr=eta) - u, end_of(u, 1.0, 1, 2, lr=eta) - u]
        buf = 0.5 * buf + 5 / 3 * (deltas[0] / 3 + deltas[1] / 2 * 2 / 3) / eta
        u += eta * buf
    assert [task.lr(r) for r in range(3)] == pytest.approx([0.1, 0.05, 0.025])
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)


def test_frozen_and_idle_parameters_rest() -> None:
    # the received classifier of fedtc is trained by nobody: its a_k is any number, not infinity
    server, _ = several("fednova+fedtc", skewed(3, train_size=60), 2)
    assert all(v.isfinite().all() for v in server.w.values())
    server, _ = several("fednova+etf", skewed(3, train_size=60), 2)
    assert not any(name.startswith("head.") for name in server.w)


def test_running_statistics_take_the_plain_average() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
    server, reports, _ = one_round("fednova", task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed))
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    assert [r.sent["fednova"]["a"] for r in reports] == [1.0, 1.0]


def test_the_default_has_no_momentum_and_no_proximal_term() -> None:
    assert parse("fednova").pieces[0] == FedNova(gmf=0.0, mu=0.0)


# ---- a_k as it is sent


@pytest.mark.parametrize("recipe", ["fednova(mu=0.5)", "fednova+prox(mu=0.5)"])
def test_fednova_counts_the_pull_whoever_brings_it(recipe):
    _, reports, _ = toy.one_round(recipe, toy.two_clients(epochs=4, momentum=0.9))
    assert reports[0].sent["fednova"]["a"] == pytest.approx(effective_steps(4, 0.9, 0.1 * 0.5))


def test_fednova_sends_one_number_where_all_parameters_step_alike():
    _, reports, _ = toy.one_round("fednova", toy.two_clients(epochs=4))
    assert reports[0].sent["fednova"] == {"a": 4.0}


def test_fednova_takes_one_number_from_some_and_several_from_others():
    # under fedtc the head steps at a hundredth of the rate; a client that makes no step with it sends one number
    task = toy.skewed(6, train_size=300, momentum=0.9, partition="dir(0.05)")
    server, _ = toy.several("fednova+fedtc", task, 2)
    assert all(torch.isfinite(v).all() for v in server.w.values())
    w = Tree({"u": torch.tensor(0.0), "v": torch.tensor(0.0)})
    moved = Tree({"u": torch.tensor(1.0), "v": torch.tensor(1.0)})
    each = Tree({"u": torch.tensor(2.0), "v": torch.tensor(4.0)})
    sent = [{"a": 2.0}, {"a": each}]
    reports = [Report(k, 1, 1, moved, Tree(), s) for k, s in enumerate(sent)]
    new = FedNova().aggregate(toy.arrived_at(w, reports))
    # u: tau_eff 2, mean of 1/2 and 1/2; v: tau_eff 3, mean of 1/2 and 1/4
    assert (new["u"].item(), new["v"].item()) == (1.0, pytest.approx(3 * 0.375))
