"""FedNTD: the global model's opinion on the classes that are not the label's."""

from __future__ import annotations

import math

import pytest
import torch
from toy import OneWeight, batch_of, fixed, local_of, one_round, task_of

from headway.methods.ntd import NTD
from headway.models.losses import not_true_distillation


def kl(p: list[float], q: list[float]) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def soft(*z: float) -> list[float]:
    total = sum(math.exp(v) for v in z)
    return [math.exp(v) / total for v in z]


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_loss_by_hand(tau: float) -> None:
    # label 1: student (0, log 3) and teacher (log 4, 0) on the classes 0 and 2; tau^2 KL(teacher || student)
    z = torch.tensor([[0.0, 50.0, math.log(3)]])
    teacher = torch.tensor([[math.log(4), -7.0, 0.0]])
    expected = tau**2 * kl(soft(math.log(4) / tau, 0.0), soft(0.0, math.log(3) / tau))
    found = not_true_distillation(z, teacher, torch.tensor([1]), tau)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    if tau == 1:  # (4/5, 1/5) against (1/4, 3/4)
        assert expected == pytest.approx(0.8 * math.log(3.2) + 0.2 * math.log(0.2 / 0.75))


def test_a_batch_is_averaged_with_each_its_own_label() -> None:
    z = torch.tensor([[0.0, 50.0, 1.0], [2.0, 0.0, 9.0]])
    teacher = torch.tensor([[1.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    each = [kl(soft(1.0, 0.0), soft(0.0, 1.0)), kl(soft(0.0, 3.0), soft(2.0, 0.0))]
    found = not_true_distillation(z, teacher, torch.tensor([1, 2]), 1.0)
    assert float(found) == pytest.approx(sum(each) / 2, rel=1e-5)


def test_the_true_classs_logit_gets_no_gradient() -> None:
    z = torch.tensor([[0.3, 2.0, -1.0]], requires_grad=True)
    not_true_distillation(z, torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]), 1.0).backward()
    assert float(z.grad[0, 0]) == 0
    assert float(z.grad[0, 1]) != 0


def three(epochs: int = 1):
    """h = u x in one dimension, three classes: z = h (1, -1, 0.5)."""
    return task_of(
        [2.0], [0], [[0]], classes=3, body=lambda: OneWeight(0.5), first=fixed([[1.0], [-1.0], [0.5]]), bias=False,
        epochs=epochs,
    )  # fmt: skip


def test_penalty_is_beta_times_the_distillation_of_the_received_model() -> None:
    # u = 0.5 as received (h = 1), 1.5 now (h = 3): not-true logits (-1, 0.5) against (-3, 1.5)
    local = local_of(three(), "ntd+babu")
    local = local.prepared(NTD().prepare(local))
    with torch.no_grad():
        local.net.body.u.fill_(1.5)
    value = NTD(beta=0.3, tau=2.0).penalty(batch_of(local), local)
    expected = 0.3 * 4 * kl(soft(-0.5, 0.25), soft(-1.5, 0.75))
    assert value.item() == pytest.approx(expected, rel=1e-5)


def test_two_steps_by_hand() -> None:
    # CE: dL/du = x (sum_c p_c a_c - a_0); KL: dL/du = x sum over the others of (q_c - q_c^g) a_c, q^g at u = 0.5
    _, reports, _ = one_round("ntd(beta=2)+babu", three(epochs=2))
    a, x = (1.0, -1.0, 0.5), 2.0
    u, steps = 0.5, []
    g = soft(-0.5 * x, 0.5 * 0.5 * x)
    for _ in range(2):
        p, q = soft(*(c * u * x for c in a)), soft(-u * x, 0.5 * u * x)
        ce = x * (sum(pc * ac for pc, ac in zip(p, a, strict=True)) - a[0])
        distil = x * ((q[0] - g[0]) * -1.0 + (q[1] - g[1]) * 0.5)
        steps.append(distil)
        u -= 0.1 * (ce + 2 * distil)
    assert steps[0] == pytest.approx(0.0, abs=1e-12)  # the first step is FedAvg's
    assert abs(steps[1]) > 1e-3
    assert float(reports[0].w["body.u"]) == pytest.approx(u, rel=1e-5)


def test_two_classes_leave_nothing_to_distil() -> None:
    z, teacher = torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, -2.0]])
    assert float(not_true_distillation(z, teacher, torch.tensor([0]), 1.0)) == 0
