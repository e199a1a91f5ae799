"""clsprox: a proximal term on the classifier alone."""

from __future__ import annotations

import pytest
import torch
from toy import batch_of, head_step, local_of, one_round, skewed, slope, two_clients

from headway.base.names import in_body, in_head
from headway.methods import recipe as parse
from headway.methods.clsprox import ClsProx


def test_penalty_by_hand() -> None:
    # W moves by (2, -1), b by 3 in one entry, u by 100: 4/2 (4 + 1 + 9) = 28
    local = local_of(two_clients(bias=True), "clsprox")
    with torch.no_grad():
        local.net.head.weight += torch.tensor([[2.0], [-1.0]])
        local.net.head.bias[0] += 3.0
        local.net.body.u += 100.0
    value = ClsProx(mu=4.0).penalty(batch_of(local), local)
    assert value.item() == pytest.approx(28.0)
    value.backward()
    assert local.net.head.weight.grad.flatten().tolist() == pytest.approx([8.0, -4.0])
    assert local.net.body.u.grad is None  # the extractor is not pulled


def test_two_steps_by_hand() -> None:
    # z = (a h, -a h): u by CE alone, a by CE and mu (a - 1); the second step feels the pull
    _, reports, _ = one_round("clsprox(mu=5)", two_clients(start=1.0, epochs=2))
    for report, (xs, y) in zip(reports, [([2.0], 0), ([1.0, 2.0], 1)], strict=True):
        u, a = 1.0, 1.0
        for _ in range(2):
            u, a = u - 0.1 * slope(u, xs, y, scale=a), a - 0.1 * (head_step(u, a, xs, y) + 5 * (a - 1))
        assert float(report.w["body.u"]) == pytest.approx(u, rel=1e-4)
        assert report.w["head.weight"].flatten().tolist() == pytest.approx([a, -a], rel=1e-4)


def test_a_strong_pull_holds_the_classifier_and_lets_the_body_go() -> None:
    task = skewed(3, train_size=90, epochs=3, lr=0.01)
    first = task.first_params(parse("fedavg"))
    plain, held = (one_round(text, task)[0].w - first for text in ("fedavg", "clsprox(mu=50)"))
    assert held.only(in_head).sq_norm() < 0.25 * plain.only(in_head).sq_norm()
    assert held.only(in_body).sq_norm() > 0.5 * plain.only(in_body).sq_norm()
