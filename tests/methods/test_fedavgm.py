"""FedAvgM: momentum on the server."""

from __future__ import annotations

import pytest
import torch
from toy import (
    Normed,
    arrived_at,
    assert_same,
    assert_trains_like_fedavg,
    one_round,
    several,
    slope,
    stepped_by,
    task_of,
    two_clients,
)

from headway.base.tree import Tree, mean
from headway.methods.fedavgm import FedAvgM


def t(value: float) -> Tree:
    return Tree({"u": torch.tensor(value)})


@pytest.mark.parametrize(
    ("piece", "v", "w"),
    [
        (FedAvgM(beta=0.5), 0.5 * 4 + 2, 1 + 4.0),  # v <- beta v + Delta, w <- w + v
        (FedAvgM(beta=0.5, server_lr=0.1), 4.0, 1 + 0.4),
        (FedAvgM(beta=0.5, dampening=True), 0.5 * 4 + 0.5 * 2, 1 + 3.0),
        (FedAvgM(beta=0.0, server_lr=0.1), 2.0, 1 + 0.2),
        (FedAvgM(beta=0.0), 2.0, 3.0),
    ],
)
def test_server_step_by_hand(piece: FedAvgM, v: float, w: float) -> None:
    # w = 1, w_new = 3, so Delta = 2; v was 4
    w_next, kept = stepped_by(piece, arrived_at(t(1.0), w_new=t(3.0), kept={"v": t(4.0)}))
    assert float(w_next["u"]) == pytest.approx(w)
    assert float(kept["v"]["u"]) == pytest.approx(v)


def test_momentum_starts_at_zero_so_the_first_round_is_fedavg() -> None:
    server, _, _ = one_round("fedavgm(beta=0.9)", two_clients())
    assert float(server.w["body.u"]) == pytest.approx(-1 / 30)
    assert float(server.kept["fedavgm"]["v"]["body.u"]) == pytest.approx(-1 / 30)


def test_three_rounds_by_hand() -> None:
    server, _ = several("fedavgm(beta=0.5,server_lr=0.8)+babu", two_clients(epochs=2), 3)
    u = v = 0.0
    for _ in range(3):
        delta = 0.0
        for p, xs, y in ((1 / 3, [2.0], 0), (2 / 3, [1.0, 2.0], 1)):
            w = u
            for _ in range(2):
                w -= 0.1 * slope(w, xs, y)
            delta += p * (w - u)
        v = 0.5 * v + delta
        u += 0.8 * v
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)
    assert float(server.kept["fedavgm"]["v"]["body.u"]) == pytest.approx(v, rel=1e-4)


@pytest.mark.parametrize("text", ["fedavgm(beta=0)", "fedavgm(beta=0,dampening=true)"])
def test_beta_zero_is_fedavg(text: str) -> None:
    assert_trains_like_fedavg(text)


def test_momentum_changes_the_second_round() -> None:
    with pytest.raises(AssertionError):
        assert_trains_like_fedavg("fedavgm(beta=0.5)", n=2, bitwise=False)


def test_batchnorm_statistics_have_no_momentum() -> None:
    task = task_of([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]], [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed)
    server, engine = several("fedavgm(beta=0.9)", task, 2)
    server, reports, _ = one_round("fedavgm(beta=0.9)", task, server, engine)
    assert_same(server.stats, mean([r.stats for r in reports], [0.5, 0.5]))
    assert not any("running" in name for name in server.kept["fedavgm"]["v"])


def test_clients_know_nothing_of_it() -> None:
    _, reports, engine = one_round("fedavgm", two_clients())
    assert reports[0].sent == {}
    assert engine.store.ids() == []
