"""FedETF's model: a projection towards a fixed ETF, under a temperature."""

from __future__ import annotations

import math

import pytest
import torch
from toy import OneWeight, assert_same, one_round, several, skewed, task_of, two_clients

from headway.base.errors import RecipeError
from headway.base.tree import Tree
from headway.methods import recipe as parse
from headway.methods.balanced import Balanced
from headway.methods.etfproj import ETFProj
from headway.training import rounds


def test_logits_are_beta_v_dot_mu_by_hand() -> None:
    # C = 3 in d = 2: unit rows at 120 degrees. g(h) = (h_0 + h_1 - 4, h_1), h = (3, 4) -> (3, 4) -> mu = (0.6, 0.8)
    task = task_of([[3.0, 4.0]], [0], [[0]], classes=3, body=lambda: OneWeight(1.0, 2))
    net = task.net(parse("etfproj(d=2)"))
    r = math.sqrt(3) / 2
    v = torch.tensor([[1.0, 0.0], [-0.5, r], [-0.5, -r]])
    net.load(Tree({
        "head.proj.weight": torch.tensor([[1.0, 1.0], [0.0, 1.0]]), "head.proj.bias": torch.tensor([-4.0, 0.0]),
        "head.weight": v, "head.scale": torch.tensor(5.0),
    }))  # fmt: skip
    expected = [5 * 0.6, 5 * (-0.3 + 0.8 * r), 5 * (-0.3 - 0.8 * r)]
    assert net(torch.tensor([[3.0, 4.0]])).flatten().tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("text", "width"), [("etfproj", 10), ("etfproj(d=9)", 9), ("etfproj(d=32)", 32)])
def test_the_projection_goes_to_as_many_dimensions_as_classes_unless_told(text: str, width: int) -> None:
    net = skewed(2, train_size=30).net(parse(text))
    assert net.head.proj.weight.shape == (width, 64)
    v = net.head.weight
    assert v.shape == (10, width)
    assert torch.allclose(v @ v.T, 10 / 9 * torch.eye(10) - torch.ones(10, 10) / 9, atol=1e-5)


def test_what_is_trained_and_what_is_fixed() -> None:
    task = skewed(2, train_size=30)
    net = task.net(parse("etfproj"))
    heads = [name for name in net.params() if name.startswith("head.")]
    assert sorted(heads) == ["head.proj.bias", "head.proj.weight", "head.scale"]
    assert "head.weight" in net.frozen()
    assert net.head.bias is None
    assert net.head.scale.item() == 1.0


def test_the_classifier_never_moves_and_the_rest_does() -> None:
    task = skewed(3, train_size=90, momentum=0.9, weight_decay=0.1)
    recipe = parse("fedetf")
    first, start = task.net(recipe).frozen(), task.first_params(recipe)
    server, _ = several(recipe, task, 2)
    assert_same(rounds.global_net(server, recipe, task).frozen(), first)
    assert all(not torch.equal(server.w[name], v) for name, v in start.items())


def beta_step(s: float, y: int, beta: float = 1.0) -> float:
    """dL/dbeta for z = beta (s, -s): -+ 2 s (1 - p_y)."""
    sign = 1.0 if y == 0 else -1.0
    return -2 * sign * s / (1 + math.exp(2 * sign * beta * s))


def test_a_round_by_hand_and_beta_is_averaged() -> None:
    # no projection, one dimension: mu = 1 for every sample, v = (s, -s), z = beta (s, -s); only beta can learn
    task = two_clients(start=1.0)
    s = float(task.net(parse("etfproj(project=false)")).head.weight[0, 0])
    server, reports, _ = one_round("etfproj(project=false)", task)
    betas = [1 - 0.1 * beta_step(s, y) for y in (0, 1)]
    assert [float(r.w["head.scale"]) for r in reports] == pytest.approx(betas, rel=1e-6)
    assert betas[0] != betas[1]
    assert float(server.w["head.scale"]) == pytest.approx(betas[0] / 3 + 2 * betas[1] / 3, rel=1e-6)
    assert float(server.w["body.u"]) == pytest.approx(1.0)


def test_weight_decay_covers_the_temperature() -> None:
    task = two_clients(start=1.0, weight_decay=0.5)
    s = float(task.net(parse("etfproj(project=false)")).head.weight[0, 0])
    _, reports, _ = one_round("etfproj(project=false)", task)
    assert float(reports[0].w["head.scale"]) == pytest.approx(1 - 0.1 * (beta_step(s, 0) + 0.5), rel=1e-6)


def test_without_projection_the_unit_feature_meets_the_etf() -> None:
    net = skewed(2, train_size=30).net(parse("fedetf-noproj"))
    h = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))
    assert not hasattr(net.head, "proj")
    assert net.head.weight.shape == (10, 64)
    assert torch.allclose(net.head(h), (h / h.norm(dim=1, keepdim=True)) @ net.head.weight.T, atol=1e-6)


@pytest.mark.parametrize(("text", "beta"), [("fedetf-fixedtemp", 1.0), ("etfproj(temperature=fixed,beta=4)", 4.0)])
def test_a_fixed_temperature_stays(text: str, beta: float) -> None:
    task = skewed(3, train_size=60)
    recipe = parse(text)
    server, reports, _ = one_round(recipe, task)
    assert "head.scale" not in reports[0].w
    net = rounds.global_net(server, recipe, task)
    assert float(net.head.scale) == beta
    h = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))
    e = net.head.embed(h)
    assert torch.allclose(e.norm(dim=1), torch.ones(4))
    assert torch.allclose(net.head(h), beta * e @ net.head.weight.T, atol=1e-5)


def test_too_few_dimensions_are_refused() -> None:
    task = task_of(torch.eye(3), [0, 1, 2], [[0, 1, 2]], classes=5, body=lambda: OneWeight(1.0, 3))
    with pytest.raises(RecipeError, match=r"5 classes need at least 4 features and there are 3; leave d out"):
        rounds.begin(parse("etfproj(d=3)"), task)
    with pytest.raises(RecipeError, match=r"there are 3; use project=true, or a wider body"):
        rounds.begin(parse("etfproj(project=false)"), task)
    rounds.begin(parse("etfproj"), task)  # 3 features are projected to 5


def test_fedetf_is_the_projection_with_the_balanced_loss_floored_at_one() -> None:
    assert parse("fedetf").pieces[1:] == (ETFProj(), Balanced(gamma=1.0, absent="floor1"))
    assert parse("fedetf-nobalance").pieces[1:] == (ETFProj(),)
    assert parse("fedetf-noproj").pieces[1:] == (ETFProj(project=False), Balanced())
    assert parse("fedetf-fixedtemp").pieces[1:] == (ETFProj(temperature="fixed"), Balanced())


def test_prediction_has_no_prior() -> None:
    task = skewed(3, train_size=60)
    server, _ = several("fedetf", task, 1)
    balanced, plain = (rounds.global_net(server, parse(r), task)(task.dataset.x[:5]) for r in ("fedetf", "etfproj"))
    assert torch.equal(balanced, plain)
