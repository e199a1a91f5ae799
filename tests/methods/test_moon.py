"""MOON: near the global model's features, far from this client's last model's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy import (
    Normed,
    assert_same,
    assert_trains_like_fedavg,
    batch_of,
    fixed,
    local_of,
    one_round,
    several,
    skewed,
    task_of,
)

from headway.base.tree import Tree
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.moon import Moon
from headway.models.losses import contrast


class Stretch(nn.Module):
    """h = (a x_0, b x_1)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.dim = nn.Parameter(torch.tensor([1.0, 1.0])), 2

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x


X = [[1.0, 2.0], [2.0, -1.0], [0.5, 1.0]]


def stretched(**given):
    """Two clients in the plane under a frozen head, one step a round."""
    first = fixed([[1.0, -1.0], [-1.0, 2.0]])
    return task_of(X, [0, 1, 1], [[0], [1, 2]], body=Stretch, first=first, bias=False, **given)


def l_con(a: np.ndarray, glob: np.ndarray, prev: np.ndarray, xs: np.ndarray, tau: float) -> float:
    """The formula written out: mean of -log( e^(cos(z, z_g)/tau) / (e^(cos(z, z_g)/tau) + e^(cos(z, z_p)/tau)) )."""

    def cos(v: np.ndarray, w: np.ndarray) -> float:
        return float(v @ w / np.linalg.norm(v) / np.linalg.norm(w))

    def one(x: np.ndarray) -> float:
        near, far = math.exp(cos(a * x, glob * x) / tau), math.exp(cos(a * x, prev * x) / tau)
        return -math.log(near / (near + far))

    return sum(one(x) for x in xs) / len(xs)


def test_eq3_is_the_formula_written_out() -> None:
    w = {"prev": torch.tensor([1.0, 3.0]), "now": torch.tensor([2.0, 1.0])}
    piece = Moon(mu=5.0, tau=0.5)
    local = local_of(stretched(), "moon+babu", k=1, kept={"w": Tree({"body.a": w["prev"]})})
    ready = piece.prepare(local)
    local.net.load(Tree({"body.a": w["now"]}))
    found = piece.penalty(batch_of(local), local_of(stretched(), "moon+babu", k=1, ready=ready))
    now, prev = (w[k].double().numpy() for k in ("now", "prev"))
    assert found.item() == pytest.approx(5 * l_con(now, np.ones(2), prev, np.array(X[1:]), 0.5), rel=1e-5)


def test_a_new_client_has_the_constant_log_2_without_gradient() -> None:
    piece = Moon(mu=1.0)
    local = local_of(stretched(), "moon+babu", k=1)
    ready = piece.prepare(local_of(stretched(), "moon+babu", k=1, kept=piece.init_client(local.w0)))
    local.net.load(Tree({"body.a": torch.tensor([0.3, -2.0])}))
    penalty = piece.penalty(batch_of(local), local_of(stretched(), "moon+babu", k=1, ready=ready))
    penalty.backward()
    assert penalty.item() == pytest.approx(math.log(2), rel=1e-6)
    assert torch.allclose(local.net.body.a.grad, torch.zeros(2), atol=1e-7)


def test_first_round_equals_fedavg() -> None:
    assert_trains_like_fedavg("moon(mu=5)", n=1, bitwise=False)


def test_the_second_round_by_hand() -> None:
    # the same server goes on with FedAvg and with MOON: their difference is -lr mu grad l_con, one step from w^t
    task, mu, tau = stretched(lr=0.1, epochs=2), 3.0, 0.5
    server, reports, engine = one_round(f"moon(mu={mu})+babu", task)
    task = stretched(lr=0.1)
    moon = one_round(f"moon(mu={mu})+babu", task, server, engine)[1]
    plain = one_round("fedbabu", task, server, LocalEngine())[1]
    for k, xs in ((0, X[:1]), (1, X[1:])):
        prev = reports[k].w["body.a"].double().numpy()  # where this client stood at the end of round 0
        w0 = server.w["body.a"].double().numpy()
        step = 1e-6 * np.eye(2)
        grad = [(l_con(w0 + e, w0, prev, np.array(xs), tau) - l_con(w0 - e, w0, prev, np.array(xs), tau)) / 2e-6
                for e in step]  # fmt: skip
        found = (moon[k].w["body.a"] - plain[k].w["body.a"]).tolist()
        assert found == pytest.approx([-0.1 * mu * g for g in grad], abs=2e-6)
        assert max(map(abs, found)) > 1e-4


def test_mu_zero_is_fedavg() -> None:
    assert_trains_like_fedavg("moon(mu=0)")


def test_the_contrast_changes_the_second_round() -> None:
    with pytest.raises(AssertionError):
        assert_trains_like_fedavg("moon(mu=5)", n=3, bitwise=False)


def test_the_last_model_is_that_of_the_clients_last_participation() -> None:
    task, recipe = stretched(sampling=0.5), parse("moon")
    server, engine, last = None, None, {}
    for _ in range(6):
        server, (report,), engine = one_round(recipe, task, server, engine)
        last[report.client] = report.w
    assert last.keys() == {0, 1}
    for k, w in last.items():
        assert_same(engine.store.get(k).kept["moon"]["w"].only(w.__contains__), w)


def test_teachers_learn_nothing_and_are_in_eval_mode() -> None:
    task = task_of([[1.0, 0.0], [3.0, 2.0]], [0, 1], [[0, 1]], body=Normed)
    local = local_of(task, "moon")
    local.net.train()
    ready = Moon().prepare(local_of(task, "moon", kept={"w": local.w0}))
    for teacher in ready.values():
        assert not any(module.training for module in teacher.net.modules())
        assert not any(p.requires_grad for p in teacher.net.parameters())
    before = {who: ready[who].net.stats() for who in ready}
    view = local_of(task, "moon", ready=ready)
    Moon().penalty(batch_of(local), view).backward()
    assert_same({who: ready[who].net.stats() for who in ready}, before)


def test_the_last_model_predicts_with_its_own_running_statistics() -> None:
    # w_k^prev is a whole model, and in eval mode its features depend on the statistics it ended its last round with
    x = [[1.0, 0.0], [3.0, 2.0], [40.0, 1.0], [4.0, 50.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed)
    recipe = parse("moon")
    _, reports, engine = one_round(recipe, task)
    local = local_of(task, "moon", kept=engine.store.get(0).kept["moon"])
    prev = Moon().prepare(local)["prev"]
    alone = task.net(recipe).load(reports[0].w, reports[0].stats).eval()
    assert torch.allclose(prev.features(batch_of(local)), alone.features(local.x))


def test_the_contrast_is_on_raw_features() -> None:
    # MOON's z is taken here as the body's output: 64 features, not the 10 of FedETF's projection
    task = skewed(2, train_size=40)
    server, engine = several("moon+etfproj", task, 1)
    local = local_of(task, "moon+etfproj", kept=engine.store.get(0).kept["moon"])
    piece = Moon(mu=1.0)
    ready = piece.prepare(local)
    local.net.load(server.w)
    batch = batch_of(local)
    teachers = [ready[who].features(batch) for who in ("glob", "prev")]
    assert batch.h.shape[1] == 64
    found = piece.penalty(batch, local_of(task, "moon+etfproj", ready=ready))
    assert torch.equal(found, contrast(batch.h, *teachers, tau=0.5))


def test_nothing_more_is_sent() -> None:
    server, engine = several("moon", stretched(), 2)
    _, reports, _ = one_round("moon", stretched(), server, engine)
    assert reports[0].sent == {}
    assert server.kept == {}
