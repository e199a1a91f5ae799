"""FedOpt, FedAdagrad, FedAdam, FedYogi: the averaged update as the pseudo-gradient of a server optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from toy import Normed, arrived_at, assert_same, one_round, several, slope, stepped_by, task_of, two_clients

from headway.base.tree import Tree, mean
from headway.methods import recipe as parse

FAMILY = ["fedopt", "fedadagrad", "fedadam", "fedyogi"]


def t(value: float) -> Tree:
    return Tree({"u": torch.tensor(value, dtype=torch.float64)})


def stepped(text: str, w: float, w_new: float, **kept: float) -> tuple[float, dict[str, float]]:
    """One server step of the first piece on a single number."""
    piece = parse(text).pieces[0]
    after, notes = stepped_by(piece, arrived_at(t(w), w_new=t(w_new), kept={key: t(v) for key, v in kept.items()}))
    return float(after["u"]), {key: float(v["u"]) for key, v in notes.items()}


def test_fedopt_is_sgd_with_momentum() -> None:
    # Delta = 3 - 1 = 2; m = 0.9 * 10 + 2 = 11; w = 1 + 0.1 * 11 = 2.1
    w, kept = stepped("fedopt(server_lr=0.1,momentum=0.9)", 1.0, 3.0, m=10.0)
    assert w == pytest.approx(2.1)
    assert kept == pytest.approx({"m": 11.0})


def test_adagrad_adds_the_square_and_has_no_momentum() -> None:
    # Delta = 2; v = 5 + 4 = 9; m = Delta whatever it was; w = 1 + 0.5 * 2 / (3 + 1) = 1.25
    w, kept = stepped("fedadagrad(server_lr=0.5,eps=1)", 1.0, 3.0, m=100.0, v=5.0)
    assert kept == pytest.approx({"m": 2.0, "v": 9.0})
    assert w == pytest.approx(1.25)


def test_adam_averages_the_square() -> None:
    # Delta = 2; m = 0.5 * 4 + 0.5 * 2 = 3; v = 0.75 * 4 + 0.25 * 4 = 4; w = 1 + 0.5 * 3 / (2 + 1) = 1.5
    w, kept = stepped("fedadam(server_lr=0.5,b1=0.5,b2=0.75,eps=1)", 1.0, 3.0, m=4.0, v=4.0)
    assert kept == pytest.approx({"m": 3.0, "v": 4.0})
    assert w == pytest.approx(1.5)
    _, kept = stepped("fedadam(b2=0.75)", 1.0, 3.0, m=0.0, v=20.0)
    assert kept["v"] == pytest.approx(0.75 * 20 + 0.25 * 4)


@pytest.mark.parametrize(("v", "after"), [(9.0, 9.0 - 0.25 * 4), (1.0, 1.0 + 0.25 * 4), (4.0, 4.0)])
def test_yogi_moves_v_towards_the_square_by_its_sign_alone(v: float, after: float) -> None:
    # v <- v - (1 - b2) Delta^2 sign(v - Delta^2), Delta^2 = 4
    w, kept = stepped("fedyogi(server_lr=0.5,b1=0.5,b2=0.75,eps=1)", 1.0, 3.0, m=4.0, v=v)
    assert kept == pytest.approx({"m": 3.0, "v": after})
    assert w == pytest.approx(1 + 0.5 * 3 / (math.sqrt(after) + 1))


@pytest.mark.parametrize("name", FAMILY[1:])
def test_v_starts_at_eps_squared(name: str) -> None:
    kept = parse(f"{name}(eps=0.1)").pieces[0].init_server(t(5.0), None)
    assert float(kept["v"]["u"]) == pytest.approx(0.01)
    assert float(kept["m"]["u"]) == 0


def sgd(m: float, v: float, d: float) -> tuple[float, float, float]:
    m = 0.5 * m + d
    return m, v, 0.2 * m


def adagrad(m: float, v: float, d: float) -> tuple[float, float, float]:
    v = v + d * d
    return d, v, 0.2 * d / (math.sqrt(v) + 0.01)


def adam(m: float, v: float, d: float) -> tuple[float, float, float]:
    m, v = 0.9 * m + 0.1 * d, 0.99 * v + 0.01 * d * d  # and no bias correction
    return m, v, 0.2 * m / (math.sqrt(v) + 0.01)


def yogi(m: float, v: float, d: float) -> tuple[float, float, float]:
    m, v = 0.9 * m + 0.1 * d, v - 0.01 * d * d * math.copysign(1, v - d * d)
    return m, v, 0.2 * m / (math.sqrt(v) + 0.01)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fedopt(server_lr=0.2,momentum=0.5)", sgd),
        ("fedadagrad(server_lr=0.2,eps=0.01)", adagrad),
        ("fedadam(server_lr=0.2,eps=0.01)", adam),
        ("fedyogi(server_lr=0.2,eps=0.01)", yogi),
    ],
)
def test_three_rounds_by_hand(text: str, rule: Callable[[float, float, float], tuple[float, float, float]]) -> None:
    # Delta = 1/3 Delta_0 + 2/3 Delta_1, one step each
    u, m, v = 0.0, 0.0, 1e-4
    for _ in range(3):
        delta = -0.1 * slope(u, [2.0], 0) / 3 - 0.1 * slope(u, [1.0, 2.0], 1) * 2 / 3
        m, v, step = rule(m, v, delta)
        u += step
    server, _ = several(f"{text}+babu", two_clients(), 3)
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)


@pytest.mark.parametrize("name", FAMILY)
def test_running_statistics_take_the_plain_average(name: str) -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
    server, reports, _ = one_round(name, task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed))
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    notes = server.kept[name]
    assert all(set(tree) == set(server.w) for tree in notes.values())  # parameters only: no state for buffers
