"""FedProx: the squared distance to the received model, over parameters only."""

from __future__ import annotations

import pytest
import torch
from toy import (
    Normed,
    OneWeight,
    assert_trains_like_fedavg,
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

from headway.base.tree import Tree
from headway.core.phase import Step
from headway.methods import recipe as parse
from headway.methods.clsprox import ClsProx
from headway.methods.feddyn import FedDyn
from headway.methods.fednova import FedNova
from headway.methods.prox import Prox


def moved(mu: float, recipe: str = "fedprox"):
    """A client whose u has moved by 3 and whose W by (0, 4); the penalty, and its gradients."""
    local = local_of(two_clients(), recipe)
    local.net.load(Tree({"body.u": torch.tensor(3.0), "head.weight": torch.tensor([[1.0], [3.0]])}))
    return local, Prox(mu=mu).penalty(batch_of(local), local)


def test_eq2_is_half_mu_times_the_squared_norm() -> None:
    _, penalty = moved(mu=0.2)
    assert penalty.item() == pytest.approx(0.1 * (9 + 16))  # not 0.1 * 5


def test_eq2_gradient_is_mu_times_the_distance() -> None:
    local, penalty = moved(mu=0.2)
    penalty.backward()
    assert local.net.body.u.grad.item() == pytest.approx(0.2 * 3)
    assert local.net.head.weight.grad.flatten().tolist() == pytest.approx([0.0, 0.2 * 4])


def test_running_statistics_are_no_part_of_the_distance() -> None:
    task = task_of([[1.0, 2.0], [2.0, 3.0]], [0, 1], [[0, 1]], body=Normed)
    local = local_of(task, "fedprox")
    local.net.body.bn.running_mean += 7
    assert Prox(mu=1.0).penalty(batch_of(local), local).item() == 0


def test_a_round_by_hand() -> None:
    # mu = 2, two steps: the first has no pull (w = w^t), the second pulls u back by 2 u
    server, reports, _ = one_round("fedbabu+prox(mu=2)", two_clients(epochs=2))
    us = []
    for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
        u = -0.1 * slope(0.0, xs, y)
        us.append(u - 0.1 * (slope(u, xs, y) + 2 * u))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-5)


def test_the_pull_is_to_the_model_of_this_round() -> None:
    task = two_clients(epochs=2)
    server, _, engine = one_round("fedbabu+prox(mu=2)", task)
    u0 = float(server.w["body.u"])
    _, reports, _ = one_round("fedbabu+prox(mu=2)", task, server, engine)
    u = u0 - 0.1 * slope(u0, [2.0], 0)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.1 * (slope(u, [2.0], 0) + 2 * (u - u0)), rel=1e-5)


def test_mu_zero_is_fedavg() -> None:
    assert_trains_like_fedavg("fedprox(mu=0)")


def test_a_stronger_pull_keeps_clients_nearer() -> None:
    task = skewed(3, train_size=120, epochs=3, momentum=0.0)
    far = []
    for mu in (0.0, 0.5, 5.0):
        first = task.first_params(parse("fedavg"))
        _, reports, _ = one_round(f"fedprox(mu={mu})", task)
        far.append(float(sum((r.w - first).sq_norm() for r in reports)))
    assert far[0] > 1.05 * far[1]
    assert far[1] > 1.05 * far[2]


def test_prox_leaves_personal_parameters_alone() -> None:
    # the head is personal under fedper: only u is pulled
    strong, free = (several(f"fedper+prox(mu={mu})", two_clients(start=1.0, epochs=1), 1)[1] for mu in (5, 0))
    assert torch.equal(strong.store.get(0).personal["head.weight"], free.store.get(0).personal["head.weight"])
    local = local_of(two_clients(), "fedper+prox")
    local.net.load(Tree({"head.weight": torch.tensor([[9.0], [9.0]])}))
    assert Prox(mu=1.0).penalty(batch_of(local), local).item() == 0


# ---- without momentum and weight decay


def test_prox_plain_sgd_steps_without_momentum_and_decay() -> None:
    # two full-batch epochs on u alone: u1 = 0 - 0.1 g(0), u2 = u1 - 0.1 g(u1), whatever momentum and decay say
    task = two_clients(epochs=2, momentum=0.9, weight_decay=0.5)
    _, reports, _ = one_round("prox(mu=0,plain_sgd=true)+babu", task)
    u = 0.0
    for _ in range(2):
        u -= 0.1 * slope(u, [2.0], 0)
    assert float(reports[0].w["body.u"]) == pytest.approx(u, rel=1e-5)
    _, heavy, _ = one_round("prox(mu=0)+babu", task)
    assert float(heavy[0].w["body.u"]) > u + 1e-3  # momentum carries it further


def test_prox_plain_sgd_also_holds_in_the_phases_of_another_piece() -> None:
    def steps(text: str) -> list[Step]:
        return [phase.step(Step(0.1, momentum=0.9, decay=0.5), "body.u") for phase in parse(text).local_phases(3)]

    pulled = Step(0.1, momentum=0.9, decay=0.5, pull=0.001)
    assert steps("fedrep+prox") == [pulled, pulled]
    assert steps("fedrep+prox(plain_sgd=true)") == [pulled.plain(), pulled.plain()]
    assert (pulled.plain().momentum, pulled.plain().decay) == (0.0, 0.0)


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
    "piece", [Prox(mu=0.1), ClsProx(mu=0.1), FedNova(mu=0.1), FedDyn(alpha=0.1)], ids=lambda p: p.name
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
