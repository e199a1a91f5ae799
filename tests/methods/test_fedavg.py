"""FedAvg: the round itself, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toy import Normed, assert_same, assert_trains_like_fedavg, one_round, several, skewed, slope, task_of, two_clients

from headway.methods import recipe as parse


@pytest.mark.parametrize(("aggregation", "expected"), [("weighted", -0.1 / 3), ("uniform", 0.025)])
def test_a_round_by_hand(aggregation: str, expected: float) -> None:
    # u_0 = 0 + 0.1 * 2 = 0.2 and u_1 = 0 - 0.1 * 1.5 = -0.15
    # weighted: 1/3 * 0.2 - 2/3 * 0.15 = -1/30; uniform: (0.2 - 0.15) / 2 = 0.025
    server, reports, _ = one_round("fedavg", two_clients(aggregation=aggregation))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx([0.2, -0.15])
    assert [(r.client, r.n, r.steps) for r in reports] == [(0, 1, 1), (1, 2, 1)]
    assert float(server.w["body.u"]) == pytest.approx(expected)
    assert server.w["head.weight"].tolist() == [[1.0], [-1.0]]  # dL/dW = 0 at h = 0
    assert server.round == 1


def test_body_and_head_train_together_by_hand() -> None:
    # two steps of client 0: x = 2, y = 0, z = (a h, b h), h = 2 u; q = 1 - p_0
    u, a, b = 0.5, 1.0, -1.0
    for _ in range(2):
        h = 2 * u
        q = 1 / (1 + math.exp((a - b) * h))
        u, a, b = u + 0.1 * q * (a - b) * 2, a + 0.1 * q * h, b - 0.1 * q * h
    _, reports, _ = one_round("fedavg", two_clients(start=0.5, epochs=2))
    assert float(reports[0].w["body.u"]) == pytest.approx(u, rel=1e-6)
    assert reports[0].w["head.weight"].flatten().tolist() == pytest.approx([a, b], rel=1e-6)


def test_the_second_round_starts_from_the_mean() -> None:
    task = two_clients()
    server, _, engine = one_round("fedbabu", task)
    u = -0.1 / 3
    server, reports, _ = one_round("fedbabu", task, server, engine)
    u_0, u_1 = u - 0.1 * slope(u, [2.0], 0), u - 0.1 * slope(u, [1.0, 2.0], 1)
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx([u_0, u_1], rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(u_0 / 3 + 2 * u_1 / 3, rel=1e-5)


def test_weights_sum_to_one_over_the_sampled_clients() -> None:
    server, (report,), _ = one_round("fedavg", two_clients(sampling=0.5))
    assert float(server.w["body.u"]) == float(report.w["body.u"])


@pytest.mark.parametrize(("aggregation", "p"), [("weighted", [2 / 5, 3 / 5]), ("uniform", [0.5, 0.5])])
def test_batchnorm_statistics_are_averaged_with_p_k(aggregation: str, p: list[float]) -> None:
    # one step a client: running = 0.9 * start + 0.1 * statistics of the batch, before the weights move
    x = np.array([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0], [2.0, 6.0]])
    task = task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed, aggregation=aggregation)
    server, _, _ = one_round("fedavg", task)
    a = x @ np.array([[1.0, 0.5], [-0.5, 1.0]]).T
    means = [0.1 * a[i].mean(0) for i in ([0, 1], [2, 3, 4])]
    variances = [0.9 + 0.1 * a[i].var(0, ddof=1) for i in ([0, 1], [2, 3, 4])]
    expected_mean = p[0] * means[0] + p[1] * means[1]
    expected_var = p[0] * variances[0] + p[1] * variances[1]
    assert list(server.stats) == ["body.bn.running_mean", "body.bn.running_var"]
    np.testing.assert_allclose(server.stats["body.bn.running_mean"], expected_mean, rtol=1e-5)
    np.testing.assert_allclose(server.stats["body.bn.running_var"], expected_var, rtol=1e-5)


def test_clients_and_server_remember_nothing_but_the_model() -> None:
    server, engine = several("fedavg", two_clients(), 2)
    assert server.kept == {}
    assert engine.store.ids() == []


def test_a_report_carries_the_model_and_nothing_else() -> None:
    _, reports, _ = one_round("fedavg", skewed(3, train_size=60))
    assert reports[0].sent == {}
    assert list(reports[0].w) == ["body.fc1.weight", "body.fc1.bias", "head.weight", "head.bias"]


def test_one_client_is_plain_training() -> None:
    task = skewed(1, partition="iid", train_size=64, momentum=0.9)
    server, (report,), _ = one_round("fedavg", task)
    assert_same(server.w, report.w)


def test_fedavg_is_the_neutral_element_of_a_recipe() -> None:
    assert parse("scaffold+fedfn").names == "scaffold+fn"
    assert parse("fn").names == "fedavg+fn"
    assert_trains_like_fedavg("fedavg+fedavg")


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    runs = [several("fedavg", skewed(3, seed=s, train_size=60), 2)[0].w["body.fc1.weight"] for s in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
