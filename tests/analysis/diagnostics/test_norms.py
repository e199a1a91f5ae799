"""Norms on the classes a client has and lacks, and classifiers class by class."""

from __future__ import annotations

import math

import pytest
import torch
from diagnosed import SMALL, check_whole
from toy import OneWeight, fixed, task_of

from headway.analysis.diagnostics.norms import (
    chosen_rounds,
    classifier_norms,
    correlation,
    difference,
    spread,
    watched_classifiers,
)
from headway.analysis.diagnostics.subject import Subject
from headway.methods import recipe as parse
from headway.metrics.local_statistics import LocalStatistics, mean_norms, statistics_of
from headway.runs.runner import Options, execute
from headway.training.settings import settings


def statistics(counts, rows, sums=(0.0, 0.0), samples=(1, 1)) -> LocalStatistics:
    rows = torch.tensor(rows, dtype=torch.float64)
    return LocalStatistics(
        0, torch.tensor(counts), rows, rows, rows, torch.tensor(sums, dtype=torch.float64), torch.tensor(samples)
    )


def test_id_and_ood_by_hand() -> None:
    # the client has class 0 alone: ||w_0|| = 5 is ID, ||w_1|| = 2 is OOD; features 6/3 and 4/1
    s = statistics([7, 0], [[3.0, 4.0], [0.0, 2.0]], (6.0, 4.0), (3, 1))
    assert s.weight_norms() == (5.0, 2.0)
    assert s.feature_norms() == (2.0, 4.0)


def test_a_client_with_all_classes_has_no_ood() -> None:
    s = statistics([7, 1], [[3.0, 4.0], [0.0, 2.0]], (6.0, 4.0), (3, 1))
    assert s.weight_norms() == (3.5, None)
    assert s.feature_norms() == (2.5, None)  # 10 / 4: over samples, not over classes


def test_clients_count_alike_and_unknown_ones_not_at_all() -> None:
    one = statistics([7, 0], [[3.0, 4.0], [0.0, 2.0]])
    both = statistics([7, 1], [[3.0, 4.0], [0.0, 2.0]])
    found = mean_norms([one, both], weight_global=1.0)
    assert found.weight_id == (5.0 + 3.5) / 2
    assert found.weight_ood == 2.0
    assert found.weight_global == 1.0
    assert found.feature_global is None
    assert difference(found.weight_id, found.feature_global) is None


def test_the_tables_of_a_net_by_hand() -> None:
    # h = 2 x: own data 1, 3 of class 0 (mean h = 4) and -1 of class 1 (h = -2); tests x = 1, 2 of class 0, 5 of class 2
    task = task_of([1.0, 3.0, -1.0], [0, 0, 1], [[0, 1, 2]], classes=3, body=lambda: OneWeight(2.0),
                   first=fixed([[1.0], [-3.0], [0.5]]))  # fmt: skip
    net = task.net(parse("fedavg"))
    test = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 2])
    s = statistics_of(net, 4, torch.tensor([2, 1, 0]), task.data[0], test)
    assert s.client == 4
    assert s.raw[:2].flatten().tolist() == s.seen[:2].flatten().tolist() == [4.0, -2.0]
    assert s.raw[2].isnan().all()
    assert s.rows.flatten().tolist() == [1.0, -3.0, 0.5]
    assert s.norm_sums.tolist() == [2.0 + 4.0, 0.0, 10.0]
    assert s.norm_counts.tolist() == [2, 0, 1]
    assert s.weight_norms() == (2.0, 0.5)
    assert s.feature_norms() == (3.0, 10.0)


def test_unit_features_are_seen_as_such() -> None:
    task = task_of([[3.0, 4.0], [0.0, 2.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, dim=2))
    s = statistics_of(task.net(parse("fedfn")), 0, torch.tensor([1, 1]), task.data[0], task.data[0])
    assert s.raw.tolist() == [[3.0, 4.0], [0.0, 2.0]]
    assert s.seen[0].tolist() == pytest.approx([0.6, 0.8])
    assert s.norm_sums.tolist() == [5.0, 2.0]  # the norm is the raw feature's


def test_the_head_a_client_trains_is_looked_at() -> None:
    task = task_of([[3.0, 4.0], [0.0, 2.0]], [0, 1], [[0, 1]], body=lambda: OneWeight(1.0, dim=2))
    net = task.net(parse("fedtc"))
    with torch.no_grad():
        net.head.own.weight.fill_(7.0)
    s = statistics_of(net, 0, torch.tensor([1, 1]), task.data[0], task.data[0])
    assert s.rows.tolist() == [[7.0, 7.0], [7.0, 7.0]]


def test_spread_and_correlation_by_hand() -> None:
    # 1 and 3: mean 2, std 1; counts that grow with the norms: 1; constant norms: unknown
    assert spread(torch.tensor([[1.0, 3.0], [2.0, 2.0]])).tolist() == [0.5, 0.0]
    rising = torch.tensor([0.0, 10.0, 20.0], dtype=torch.float64)
    assert correlation(rising, torch.tensor([1.0, 2.0, 3.0]).double()) == pytest.approx(1)
    assert correlation(rising, torch.tensor([3.0, 1.0, 2.0]).double()) == pytest.approx(-0.5)
    assert correlation(rising, torch.ones(3).double()) is None
    assert not math.isnan(correlation(rising, -rising))


# ---- over rounds
def seen(t: int, *norms: list[float | None]) -> dict:
    clients = {str(k): {"counts": [4, 0], "norms": values} for k, values in enumerate(norms)}
    return {"round": t, "classifiers": clients}


def test_first_middle_and_last_watched_round() -> None:
    rows = [seen(t, [1.0, 1.0]) for t in (1, 3, 5, 7)]
    assert [row.round for row in chosen_rounds(watched_classifiers(rows))] == [1, 5, 7]
    assert [row.round for row in chosen_rounds(watched_classifiers(rows[:2]))] == [1, 3]
    assert chosen_rounds(watched_classifiers([{"round": 1, "weight_id": 2.0}])) == []


def test_a_watched_rounds_classifiers_by_hand() -> None:
    """Client 0: counts (4, 0), norms (3, 1): correlation 1. Client 1: norms (1, 3): -1. Client 2 diverged."""
    (found,) = watched_classifiers([seen(5, [3.0, 1.0], [1.0, 3.0], [None, 1.0])])
    assert (found.round, found.clients) == (5, ["0", "1", "2"])
    assert found.correlations[:2] == [pytest.approx(1), pytest.approx(-1)]
    assert found.figures() == {"round": 5, "correlation": pytest.approx(0), "local_spread": pytest.approx(0.5)}


def test_classifiers_of_watched_rounds_are_drawn(tmp_path) -> None:
    out = tmp_path / "run"
    execute("fedavg", settings({**SMALL, "rounds": 4}), out, Options(watch="classifiers"))
    found = classifier_norms(Subject.of(out))
    check_whole(found, tmp_path)
    assert [row["round"] for row in found.tables["rounds"]] == [1, 2, 3, 4]
    assert {row["round"] for row in found.tables["watched"]} == {1, 3, 4}
    assert len(found.tables["watched"]) == 3 * 4 * 10
    assert "rounds 1, 3, 4" in found.alt
