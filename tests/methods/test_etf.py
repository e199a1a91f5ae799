"""FedAvg_ETF: a fixed simplex classifier for everybody."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, assert_same, one_round, several, skewed, slope, task_of, two_clients

from headway.base.errors import RecipeError
from headway.methods import recipe as parse
from headway.training import rounds


def wide(dim: int, classes: int):
    """h = u x in `dim` dimensions, `classes` classes."""
    x = torch.eye(dim)[torch.arange(classes) % dim]
    return task_of(x, list(range(classes)), [list(range(classes))], classes=classes, body=lambda: OneWeight(1.0, dim))


@pytest.mark.parametrize("dim", [4, 5, 12])  # C - 1, C, C + 7
def test_class_vectors_form_a_simplex(dim: int) -> None:
    v = wide(dim, 5).net(parse("etf")).head.weight
    gram = 5 / 4 * torch.eye(5) - torch.ones(5, 5) / 4
    assert torch.allclose(v @ v.T, gram, atol=1e-5)


def test_too_few_features_are_refused_before_the_first_round() -> None:
    with pytest.raises(RecipeError, match=r"5 classes need at least 4 features and the body gives 3; use `etfproj`"):
        rounds.begin(parse("etf"), wide(3, 5))
    rounds.begin(parse("etf"), wide(4, 5))


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
def test_logits_are_beta_times_v_dot_h(beta: float) -> None:
    net = wide(4, 5).net(parse(f"etf(scale={beta})"))
    h = 10 * torch.randn(3, 4, generator=torch.Generator().manual_seed(0))  # not normalised
    assert torch.allclose(net.head(h), beta * h @ net.head.weight.T, atol=1e-5)
    assert net.head.bias is None


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_a_round_by_hand(beta: float) -> None:
    # two classes in one dimension: v = (s, -s), s = 1 or -1; z = beta s (h, -h), two steps each
    task = two_clients(epochs=2)
    s = float(task.net(parse("etf")).head.weight[0, 0])
    assert abs(s) == pytest.approx(1.0)
    server, reports, _ = one_round(f"etf(scale={beta})", task)
    us = []
    for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
        u = -0.1 * slope(0.0, xs, y, scale=beta * s)
        us.append(u - 0.1 * slope(u, xs, y, scale=beta * s))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-4)


def test_the_classifier_is_the_same_for_everybody_and_never_moves() -> None:
    task = skewed(3, train_size=90, momentum=0.9, weight_decay=0.1)
    first = task.net(parse("etf(scale=1.5)")).frozen()
    server, engine = several("etf(scale=1.5)", task, 2)
    _, reports, _ = one_round("etf(scale=1.5)", task, server, engine)
    assert all(name.startswith("body.") for name in (*server.w, *reports[0].w))
    assert_same(rounds.global_net(server, parse("etf(scale=1.5)"), task).frozen(), first)


def test_the_classifier_is_drawn_from_the_seed() -> None:
    v = [skewed(2, seed=s, train_size=30).net(parse("etf")).head.weight for s in (0, 0, 1)]
    assert torch.equal(v[0], v[1])
    assert not torch.allclose(v[0], v[2], atol=1e-2)


def test_the_body_starts_where_fedavgs_does() -> None:
    task = skewed(2, train_size=30)
    plain = task.first_params(parse("fedavg")).only(lambda name: name.startswith("body."))
    assert_same(task.first_params(parse("etf")), plain)


def test_a_second_classifier_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"babu sets the head's weights to 'frozen_random' and etf to 'frozen_etf'"):
        parse("etf+babu")
