"""LG-FedAvg: the mirror of FedPer, personal bodies under a shared classifier."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_files import DIGITS
from safetensors.torch import load_file
from toy import Normed, assert_same, head_step, one_round, several, skewed, slope, task_of, two_clients

import headway
from headway.base.errors import HeadwayError
from headway.methods import recipe as parse
from headway.training import rounds


def test_two_rounds_by_hand() -> None:
    # each client's u descends for itself; a is averaged with p = (1/3, 2/3)
    server, engine = several("lgfedavg", two_clients(start=1.0), 2)
    us, a = [1.0, 1.0], 1.0
    for _ in range(2):
        ends = []
        for k, (xs, y) in enumerate([([2.0], 0), ([1.0, 2.0], 1)]):
            ends.append(a - 0.1 * head_step(us[k], a, xs, y))
            us[k] -= 0.1 * slope(us[k], xs, y, scale=a)
        a = ends[0] / 3 + 2 * ends[1] / 3
    assert [float(engine.store.get(k).personal["body.u"]) for k in (0, 1)] == pytest.approx(us, rel=1e-4)
    assert server.w["head.weight"].flatten().tolist() == pytest.approx([a, -a], rel=1e-4)


def test_only_the_classifier_is_sent() -> None:
    recipe, task = parse("lgfedavg"), skewed(3, train_size=90)
    server, reports, engine = one_round(recipe, task)
    assert set(reports[0].w) == set(rounds.cast_of(server, recipe).w) == {"head.weight", "head.bias"}
    assert all(name.startswith("body.") for name in engine.store.get(0).personal)


def test_running_statistics_stay_on_their_client() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed)
    server, reports, engine = one_round("lgfedavg", task)
    assert all(r.stats == {} for r in reports)
    assert_same(server.stats, task.first_stats(parse("lgfedavg")))
    kept = [engine.store.get(k).personal["body.bn.running_mean"] for k in (0, 1)]
    assert float((kept[0] - kept[1]).abs().max()) > 0.5


def test_a_client_goes_on_from_its_own_statistics() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [20.0, 5.0], [0.0, 40.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed, lr=1e-9)
    _, engine = several("lgfedavg", task, 2)
    # A x for client 0: (1, -0.5) and (3.5, -0.5), mean (2.25, -0.5); twice r <- 0.9 r + 0.1 mean from 0: 0.19 mean
    expected = 0.19 * torch.tensor([2.25, -0.5])
    assert torch.allclose(engine.store.get(0).personal["body.bn.running_mean"], expected, atol=1e-5)


def test_there_is_no_global_model() -> None:
    recipe, task = parse("lgfedavg"), skewed(3, train_size=90)
    assert not rounds.has_global_model(recipe, task)
    assert rounds.personal_phases(recipe, task) == []


def test_a_run_may_start_from_another_runs_body_and_classifier(tmp_path: Path) -> None:
    first = headway.run("fedavg", out=tmp_path / "a", **DIGITS)
    file = first.path / "model.safetensors"
    warm = headway.run("lgfedavg", out=tmp_path / "b", weights=str(file), weights_head=True, lr=1e-9, **DIGITS)
    held = load_file(file)
    body = next(name for name in held if name.startswith("body."))
    assert torch.allclose(load_file(warm.path / "clients/0.safetensors")[body], held[body])
    assert torch.allclose(load_file(warm.path / "model.safetensors")["head.weight"], held["head.weight"], atol=1e-6)
    with pytest.raises(HeadwayError, match=r"needs 'head\.proj\.weight'"):
        headway.run("fedetf", out=tmp_path / "c", weights=str(file), weights_head=True, **DIGITS)
