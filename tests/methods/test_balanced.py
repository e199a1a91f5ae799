"""Balanced feature loss, Eq. (6): the softmax weighs each class by the client's own count of it."""

from __future__ import annotations

import math

import pytest
import torch
from toy import (
    OneWeight,
    assert_trains_like_fedavg,
    batch_of,
    fixed,
    local_of,
    one_round,
    several,
    skewed,
    task_of,
)

from headway.methods.balanced import Balanced


def counted(counts: list[int], classes: int | None = None, **given):
    """One client with so many samples x = 1 of each class, h = u x, u = 0, W = (1, -1, 0, ...)."""
    y = [c for c, n in enumerate(counts) for _ in range(n)]
    rows = [[1.0], [-1.0], *([[0.0]] * (len(counts) - 2))]
    return task_of([1.0] * len(y), y, [list(range(len(y)))], classes=len(counts), bias=False, first=fixed(rows),
                   body=lambda: OneWeight(0.0), **given)  # fmt: skip


def loss_of(piece: Balanced, counts: list[int]) -> torch.Tensor:
    local = local_of(counted(counts), "fedavg")
    return piece.criterion(batch_of(local), local_of(counted(counts), "fedavg", ready=piece.prepare(local)))


def test_eq6_by_hand() -> None:
    # z = 0, n = (3, 1): three samples of -log 3/4 and one of -log 1/4
    expected = (-3 * math.log(3 / 4) - math.log(1 / 4)) / 4
    assert loss_of(Balanced(), [3, 1]).item() == pytest.approx(expected, rel=1e-6)
    # gamma = 2: n^2 = (9, 1)
    expected = (-3 * math.log(9 / 10) - math.log(1 / 10)) / 4
    assert loss_of(Balanced(gamma=2.0), [3, 1]).item() == pytest.approx(expected, rel=1e-6)


def test_a_round_by_hand() -> None:
    # u = 0, p = (3/4, 1/4), dz/du = (1, -1): class 0 gives (p_0 - 1) - p_1 = -1/2, class 1 gives p_0 - (p_1 - 1) = 3/2;
    # the mean (3 * -1/2 + 3/2) / 4 = 0: the rare class pulls as hard as the common one. CE: (3 * -1 + 1) / 4 = -1/2.
    server, _, _ = one_round("balanced", counted([3, 1]))
    assert float(server.w["body.u"]) == pytest.approx(0.0, abs=1e-7)
    server, _, _ = one_round("fedavg", counted([3, 1]))
    assert float(server.w["body.u"]) == pytest.approx(0.05)
    # gamma = 2: p = (9/10, 1/10): (3 * -1/5 + 9/5) / 4 = 0.3
    server, _, _ = one_round("balanced(gamma=2)", counted([3, 1]))
    assert float(server.w["body.u"]) == pytest.approx(-0.03)


@pytest.mark.parametrize(("absent", "n_absent"), [("floor1", 1.0), ("eps", 1e-12), ("mask", 0.0)])
def test_absent_class_in_the_denominator_is_D12(absent: str, n_absent: float) -> None:
    # z = 0, n = (4, 0): every sample costs -log 4 / (4 + n_absent)
    found = loss_of(Balanced(absent=absent), [4, 0]).item()
    assert found == pytest.approx(-math.log(4 / (4 + n_absent)), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(("absent", "step"), [("floor1", 0.1 * 2 / 5), ("eps", 0.0), ("mask", 0.0)])
def test_absent_class_pushes_only_under_floor1(absent: str, step: float) -> None:
    # n = (4, 0), u = 0: p = (4/5, 1/5) under floor1, so dL/du = (4/5 - 1) - 1/5 = -2/5; else p = (1, 0)
    server, _, _ = one_round(f"balanced(absent={absent})", counted([4, 0]))
    assert float(server.w["body.u"]) == pytest.approx(step, abs=1e-7)


@pytest.mark.parametrize("absent", ["floor1", "eps", "mask"])
def test_training_on_few_classes_stays_finite(absent: str) -> None:
    task = skewed(5, train_size=120, partition="shard(2)")
    server, reports, _ = one_round(f"balanced(absent={absent})", task)
    assert all(math.isfinite(r.loss) for r in reports)
    assert all(torch.isfinite(v).all() for v in server.w.values())


def test_mask_gives_no_gradient_to_the_row_of_an_absent_class() -> None:
    def moved(absent: str) -> torch.Tensor:
        task = counted([2, 2, 0], lr=0.1)
        local = local_of(task, "fedavg")
        local.net.body.u.data.fill_(1.0)
        piece = Balanced(absent=absent)
        ready = local_of(task, "fedavg", ready=piece.prepare(local))
        piece.criterion(batch_of(local), ready).backward()
        return local.net.head.weight.grad.flatten()

    assert moved("mask")[2] == 0
    assert moved("mask")[0] != 0
    assert moved("floor1")[2] > 0.1


def test_counts_are_those_of_the_client_not_of_the_batch() -> None:
    # batches of one sample: the batch knows one class, the client has (3, 1)
    _, (report,), _ = one_round("balanced", counted([3, 1], batch_size=1, lr=1e-6))
    assert report.steps == 4
    assert report.loss == pytest.approx((-3 * math.log(3 / 4) - math.log(1 / 4)) / 4, rel=1e-4)


@pytest.mark.parametrize("absent", ["floor1", "eps", "mask"])
def test_gamma_zero_is_fedavg(absent: str) -> None:
    assert_trains_like_fedavg(f"balanced(gamma=0,absent={absent})")


def test_equal_counts_are_fedavg() -> None:
    # n = (2, 2): log 2 on every logit cancels
    balanced, plain = (several(r, counted([2, 2]), 2)[0].w for r in ("balanced", "fedavg"))
    assert torch.allclose(balanced["body.u"], plain["body.u"], atol=1e-7)
