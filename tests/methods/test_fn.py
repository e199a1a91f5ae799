"""FedFN: z = W h/||h||, with W trained and unnormalised."""

from __future__ import annotations

import pytest
import torch
from toy import OneWeight, fixed, one_round, several, skewed, task_of

from headway.methods import recipe as parse
from headway.training import rounds


def plane(start: float = 2.0, **given):
    """h = u x in the plane. Client 0: x = (3, 4), class 0; client 1: x = (0, 2) twice, class 1. W starts at zero."""
    x = [[3.0, 4.0], [0.0, 2.0], [0.0, 2.0]]
    first = fixed([[0.0, 0.0], [0.0, 0.0]])
    return task_of(x, [0, 1, 1], [[0], [1, 2]], body=lambda: OneWeight(start, 2), first=first, **given)


def test_logits_are_w_times_the_unit_feature() -> None:
    net = plane().net(parse("fedfn"))
    with torch.no_grad():
        net.head.weight.copy_(torch.tensor([[1.0, 0.0], [5.0, 10.0]]))
    # h = 2 (3, 4) -> (0.6, 0.8): z = (0.6, 3 + 8); rows of W keep their lengths
    assert torch.allclose(net(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 11.0]]))


def test_the_length_of_the_feature_does_not_matter() -> None:
    net = skewed(2, train_size=20).net(parse("fedfn"))
    h = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(net.head(h), net.head(1000 * h), atol=1e-6)
    assert not torch.allclose(skewed(2, train_size=20).net(parse("fedavg")).head(h), net.head(h), atol=1e-2)


def test_there_is_no_bias_and_no_temperature() -> None:
    net = plane().net(parse("fedfn"))
    assert list(net.params()) == ["body.u", "head.weight"]
    assert float(net.head.scale) == 1.0


def test_a_round_by_hand() -> None:
    # W = 0: p = (1/2, 1/2), dL/dW_c = (p_c - 1[c = y]) e. Client 0, e = (0.6, 0.8): W = 0.1 (1/2, -1/2) e
    # client 1, e = (0, 1): W = 0.1 (-1/2, 1/2) e. The unit feature does not depend on u > 0, so u stays at 2.
    server, reports, _ = one_round("fedfn", plane(lr=0.1))
    assert torch.allclose(reports[0].w["head.weight"], torch.tensor([[0.03, 0.04], [-0.03, -0.04]]))
    assert torch.allclose(reports[1].w["head.weight"], torch.tensor([[0.0, -0.05], [0.0, 0.05]]))
    # 1/3 and 2/3: (0.01, 0.04/3 - 0.1/3)
    assert torch.allclose(server.w["head.weight"], torch.tensor([[0.01, -0.02], [-0.01, 0.02]]))
    assert float(server.w["body.u"]) == pytest.approx(2.0)


def test_the_gradient_of_w_shrinks_by_the_norm_of_the_feature() -> None:
    # FedAvg's step is ||h|| = 10 times as long: h = (6, 8) against e = (0.6, 0.8)
    fn = one_round("fedfn", plane())[1][0].w["head.weight"]
    plain = one_round("fedavg", plane(bias=False))[1][0].w["head.weight"]
    assert torch.allclose(plain, 10 * fn)


def test_on_unit_features_it_is_the_linear_classifier_without_bias() -> None:
    x = [[0.6, 0.8], [0.0, 1.0]]
    task = task_of(x, [0, 1], [[0], [1]], body=lambda: OneWeight(1.0, 2), bias=False)
    assert torch.allclose(task.net(parse("fedfn"))(torch.tensor(x)), task.net(parse("fedavg"))(torch.tensor(x)))


def test_a_dead_feature_trains_without_nan() -> None:
    server, _ = several("fedfn", plane(start=0.0, lr=0.1), 2)
    assert all(torch.isfinite(v).all() for v in server.w.values())


def test_prediction_normalises_too() -> None:
    task = plane(lr=0.5)
    server, _ = several("fedfn", task, 3)
    net = rounds.global_net(server, parse("fedfn"), task)
    x = torch.tensor([[3.0, 4.0]])
    assert torch.allclose(net(x), net(100 * x))


def test_it_joins_a_frozen_classifier() -> None:
    spec = parse("fn+babu").head()
    assert spec == {"feat": "l2", "bias": False, "weights": "frozen_random"}
