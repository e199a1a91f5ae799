"""FedExP: the server steps further when clients disagree, and predicts with the mean of the last two iterates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from run_files import DIGITS
from toy import Normed, arrived_at, assert_same, one_round, several, skewed, slope, task_of, two_clients

import headway
from headway.base.tree import Tree, mean
from headway.core.state import Report, numbers
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.fedexp import FedExP
from headway.training import rounds


def stepped(deltas: list[list[float]], p: list[float], eps: float = 0.001) -> list[float]:
    """The server's move from w = (1, 1) under these client updates."""
    w = Tree({"u": torch.ones(2, dtype=torch.float64)})
    reports = [Report(k, 1, 1, w + torch.tensor(d, dtype=torch.float64), Tree(), {}) for k, d in enumerate(deltas)]
    return (FedExP(eps=eps).aggregate(arrived_at(w, reports, p))["u"] - 1).tolist()


def test_step_by_hand() -> None:
    # Delta = (3, 0), (0, 1), p = (1/2, 1/2): Dbar = (1.5, 0.5), ||Dbar||^2 = 2.5; (9 + 1)/2 = 5; eps = 0.5:
    # eta_g = 5 / (2 * 3) < 1 -> 1
    assert stepped([[3.0, 0.0], [0.0, 1.0]], [0.5, 0.5], eps=0.5) == pytest.approx([1.5, 0.5])
    # Delta = (3, 0), (-2, 0): Dbar = (0.5, 0), (9 + 4)/2 = 6.5; eps = 0.25: eta_g = 6.5 / (2 * 0.5) = 6.5
    assert stepped([[3.0, 0.0], [-2.0, 0.0]], [0.5, 0.5], eps=0.25) == pytest.approx([3.25, 0.0])
    # the same under p = (1/4, 3/4): Dbar = -0.75, (9 + 12)/4 = 5.25; eps = 0.0: eta_g = 5.25 / (2 * 0.5625) = 14/3
    moved = stepped([[3.0, 0.0], [-2.0, 0.0]], [0.25, 0.75], eps=1e-12)
    assert moved == pytest.approx([-0.75 * 14 / 3, 0.0])


def test_identical_updates_step_as_fedavg() -> None:
    assert stepped([[3.0, -1.0]] * 4, [0.1, 0.2, 0.3, 0.4]) == pytest.approx([3.0, -1.0])  # the ratio is 1/2


def test_the_step_is_never_shorter_than_fedavgs() -> None:
    rng = torch.Generator().manual_seed(0)
    for _ in range(50):
        deltas = torch.randn(3, 2, generator=rng)
        p = [0.5, 0.3, 0.2]
        moved = torch.tensor(stepped(deltas.tolist(), p, eps=0.1))
        plain = sum(q * d for q, d in zip(p, deltas, strict=True))
        eta = float(moved.norm() / plain.norm())
        assert eta >= 1 - 1e-6
        assert torch.allclose(moved, eta * plain, atol=1e-5)


def test_updates_that_cancel_or_vanish_are_no_crash() -> None:
    assert stepped([[2.0, 0.0], [-2.0, 0.0]], [0.5, 0.5]) == [0.0, 0.0]
    assert stepped([[0.0, 0.0], [0.0, 0.0]], [0.5, 0.5]) == [0.0, 0.0]


def played_by_hand(n: int) -> list[float]:
    """u after every round, under a frozen head and eps = 0.001."""
    us = [0.0]
    for _ in range(n):
        u = us[-1]
        d = [-0.1 * slope(u, [2.0], 0), -0.1 * slope(u, [1.0, 2.0], 1)]
        step = d[0] / 3 + 2 * d[1] / 3
        us.append(u + max(1.0, (d[0] ** 2 / 3 + 2 * d[1] ** 2 / 3) / (2 * (step**2 + 0.001))) * step)
    return us


def test_first_round_by_hand() -> None:
    # Delta = (0.2, -0.15): Dbar = -1/30; (0.04 + 2 * 0.0225)/3 = 0.085/3; eta_g = 0.085/3 / (2 (1/900 + 0.001)) = 6.71
    server, _, _ = one_round("fedexp+babu", two_clients())
    assert float(server.w["body.u"]) == pytest.approx(-6.710526 / 30, rel=1e-5)


def test_three_rounds_by_hand_train_from_the_iterate_and_show_the_average() -> None:
    recipe, task = parse("fedexp+babu"), two_clients()
    us = played_by_hand(3)
    server = rounds.run(recipe, task, LocalEngine(), 3)
    assert float(server.w["body.u"]) == pytest.approx(us[3], rel=1e-4)
    assert float(rounds.cast_of(server, recipe).w["body.u"]) == pytest.approx(us[3], rel=1e-4)  # clients get w^{t+1}
    shown = rounds.global_net(server, recipe, task).body.u.item()
    assert shown == pytest.approx((us[3] + us[2]) / 2, rel=1e-4)
    assert abs(shown - us[3]) > 1e-2


def test_the_average_can_be_left_out() -> None:
    recipe, task = parse("fedexp(average=false)+babu"), two_clients()
    server = rounds.run(recipe, task, LocalEngine(), 3)
    assert rounds.global_net(server, recipe, task).body.u.item() == float(server.w["body.u"])


def test_before_the_first_round_the_first_model_is_shown() -> None:
    recipe, task = parse("fedexp"), skewed(2, train_size=30)
    assert_same(rounds.global_net(rounds.begin(recipe, task), recipe, task).params().copy(), task.first_params(recipe))


def test_clients_with_the_same_data_train_as_under_fedavg() -> None:
    task = task_of([[1.0, 0.5], [-1.0, 2.0]] * 3, [0, 1] * 3, [[0, 1], [2, 3], [4, 5]], lr=0.3, epochs=2)
    (exp, _), (avg, _) = several("fedexp", task, 3), several("fedavg", task, 3)
    for name, v in avg.w.items():
        assert torch.allclose(exp.w[name], v, atol=1e-6), name


def test_running_statistics_are_neither_extrapolated_nor_left_behind() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
    task = task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed)
    server, reports, _ = one_round("fedexp", task)
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    net = rounds.global_net(server, parse("fedexp"), task)
    assert_same(net.stats(), server.stats)


def test_fedexp_logs_its_step_and_scores_both_iterates(tmp_path: Path) -> None:
    run = headway.run("fedexp", out=tmp_path / "r", **DIGITS)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["trace"]["fedexp.eta_g"] >= 1 for row in rows)
    assert run.summary["iterate_acc"] == rows[-1]["iterate_acc"]
    plain = headway.run("fedavg", out=tmp_path / "p", **DIGITS)
    assert "trace" not in json.loads((plain.path / "metrics.jsonl").read_text().splitlines()[0])


def test_fedexp_eta_g_by_hand() -> None:
    # u moves by +0.2 and -0.15, p = (1/3, 2/3): Dbar = -0.1/3, spread = 0.04/3 + 0.045/3
    recipe, task = parse("fedexp(eps=1e-9)+babu"), two_clients()
    server = rounds.begin(recipe, task)
    after, _, _ = rounds.run_round(server, recipe, task, LocalEngine())
    assert numbers(after.kept) == {"fedexp.eta_g": pytest.approx((0.085 / 3) / (2 * (0.1 / 3) ** 2), rel=1e-4)}
