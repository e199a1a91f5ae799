"""FedProx: the squared distance to the received model, over parameters only."""

from __future__ import annotations

import pytest
import torch
from toy import (
    Normed,
    assert_trains_like_fedavg,
    batch_of,
    local_of,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.methods import recipe as parse
from headway.methods.prox import Prox
from headway.tree import Tree


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
