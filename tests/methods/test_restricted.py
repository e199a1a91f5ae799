"""FedRS: the softmax of absent classes weakened, in training only."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from toy import OneWeight, fixed, local_of, one_round, skewed, task_of, two_clients

from headway.core.local import Batch
from headway.methods import recipe as parse
from headway.methods.restricted import Restricted
from headway.training import rounds


def scales(piece: Restricted, y: list[int], classes: int = 3) -> list[float]:
    task = task_of([1.0] * len(y), y, [list(range(len(y)))], classes=classes)
    return piece.prepare(local_of(task, "restricted"))["a"].tolist()


def test_absent_classes_are_scaled_by_alpha() -> None:
    assert scales(Restricted(alpha=0.3), [0, 2, 2, 2]) == pytest.approx([1.0, 0.3, 1.0])


def test_soft_scales_by_the_share_of_the_largest_class() -> None:
    # a_c = alpha + (1 - alpha) n_c / max n = 0.2 + 0.8 (1/4, 0, 4/4)
    assert scales(Restricted(alpha=0.2, soft=True), [0, 2, 2, 2, 2]) == pytest.approx([0.4, 0.2, 1.0])


def test_soft_agrees_with_hard_under_equal_counts() -> None:
    assert scales(Restricted(soft=True), [0, 2]) == scales(Restricted(), [0, 2])


def test_loss_by_hand() -> None:
    # z = (1, 2, 4), a = (1, 1/2, 1/4): CE of (1, 1, 1) = log 3, and of class 0 at a = 1 log(e + e^2 + e^4) - 1
    z = torch.tensor([[1.0, 2.0, 4.0]])
    local = local_of(two_clients(), "restricted", ready={"a": torch.tensor([1.0, 0.5, 0.25])})
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.zeros(1, 1), z)
    assert float(Restricted().criterion(batch, local)) == pytest.approx(math.log(3))
    plain = replace(local, ready={"a": torch.ones(3)})
    expected = math.log(math.exp(1) + math.exp(2) + math.exp(4)) - 1
    assert float(Restricted().criterion(batch, plain)) == pytest.approx(expected)


def test_a_step_by_hand() -> None:
    # client 0 owns class 0 only, alpha = 1/2: z' = (h, -h/2); dL/du = x (-(1 - p_0) - p_1/2) = -1.5 x (1 - p_0)
    _, reports, _ = one_round("restricted(alpha=0.5)+babu", two_clients(start=0.5))
    p0 = 1 / (1 + math.exp(-1.5 * 0.5 * 2))
    assert float(reports[0].w["body.u"]) == pytest.approx(0.5 + 0.1 * 1.5 * 2 * (1 - p0), rel=1e-5)


def test_at_alpha_zero_absent_rows_get_no_gradient() -> None:
    task = task_of(
        [[1.0, 2.0]], [0], [[0]], classes=3, body=lambda: OneWeight(1.0, 2), first=fixed([[1.0, 0.0]] * 3), bias=False
    )
    server, _, _ = one_round("restricted(alpha=0)", task)
    assert torch.equal(server.w["head.weight"][1:], torch.tensor([[1.0, 0.0]] * 2))
    assert not torch.equal(server.w["head.weight"][0], torch.tensor([1.0, 0.0]))


def test_predictions_are_unscaled() -> None:
    recipe, task = parse("fedrs"), skewed(2, train_size=60)
    server, _, _ = one_round(recipe, task)
    net = rounds.global_net(server, recipe, task)
    x = task.dataset.x_test[:5]
    assert torch.allclose(net(x), net.features(x) @ server.w["head.weight"].T)


def test_fedrs_has_no_bias() -> None:
    assert "head.bias" not in skewed(2, train_size=30).first_params(parse("fedrs"))
    assert Restricted(alpha=0.9) in parse("fedrs(alpha=0.9)").pieces
