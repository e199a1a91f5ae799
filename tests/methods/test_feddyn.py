"""FedDyn: a linear and a quadratic term on the client, h on the server."""

from __future__ import annotations

import pytest
import torch
from toy import Normed, assert_same, batch_of, local_of, one_round, several, skewed, slope, task_of, two_clients

from headway.base.tree import Tree, mean
from headway.methods.feddyn import FedDyn

DATA = [([2.0], 0), ([1.0, 2.0], 1)]


def played_by_hand(rounds: int, steps: int, alpha: float, chosen=lambda r: (0, 1)):
    """(u, h, [g_0, g_1]) with numbers instead of trees, under a frozen head; K = 2."""
    u, h, g = 0.0, 0.0, [0.0, 0.0]
    for r in range(rounds):
        ends = {}
        for k in chosen(r):
            w = u
            for _ in range(steps):
                w -= 0.1 * (slope(w, *DATA[k]) - g[k] + alpha * (w - u))
            g[k] -= alpha * (w - u)
            ends[k] = w
        h -= alpha / 2 * sum(w - u for w in ends.values())  # 1/K, K = all clients
        u = sum(ends.values()) / len(ends) - h / alpha
    return u, h, g


def notes(server, engine) -> tuple[float, list[float]]:
    kept = [engine.store.get(k) for k in (0, 1)]
    return float(server.kept["feddyn"]["h"]["body.u"]), [
        float(c.kept["feddyn"]["g"]["body.u"]) if c else 0.0 for c in kept
    ]


def test_first_round_by_hand() -> None:
    # one step from g = 0: Delta = (0.2, -0.15), the mean of both unweighted: 0.025; g_k = -alpha Delta_k;
    # h = -alpha 0.025; w = 0.025 - h / alpha = 0.05
    server, _, engine = one_round("feddyn(alpha=0.5)+babu", two_clients())
    h, g = notes(server, engine)
    assert g == pytest.approx([-0.1, 0.075])
    assert h == pytest.approx(-0.0125)
    assert float(server.w["body.u"]) == pytest.approx(0.05)


@pytest.mark.parametrize(("alpha", "epochs"), [(0.5, 1), (0.5, 3), (2.0, 2)])
def test_three_rounds_by_hand(alpha: float, epochs: int) -> None:
    server, engine = several(f"feddyn(alpha={alpha})+babu", two_clients(epochs=epochs), 3)
    u, h, g = played_by_hand(3, epochs, alpha)
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)
    found_h, found_g = notes(server, engine)
    assert found_h == pytest.approx(h, rel=1e-4)
    assert found_g == pytest.approx(g, rel=1e-4)


def test_partial_participation_divides_h_by_all_clients_and_leaves_the_others_g() -> None:
    task = two_clients(sampling=0.5)
    picked = [task.sampling(r) for r in range(3)]
    assert sorted({k for p in picked for k in p}) == [0, 1]
    u, h, g = played_by_hand(3, 1, 0.5, lambda r: picked[r])
    server, engine = several("feddyn(alpha=0.5)+babu", task, 3)
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)
    found_h, found_g = notes(server, engine)
    assert found_h == pytest.approx(h, rel=1e-4)
    assert found_g == pytest.approx(g, rel=1e-4)


def test_client_loss_by_hand() -> None:
    # u = 1.5, u0 = 1, g = 3: 2/2 * 0.5^2 - 3 * 1.5 = -4.25; its slope 2 * 0.5 - 3 = -2
    task = two_clients(start=1.0)
    local = local_of(task, "feddyn+babu", kept={"g": Tree({"body.u": torch.tensor(3.0)})})
    with torch.no_grad():
        local.net.body.u += 0.5
    value = FedDyn(alpha=2.0).penalty(batch_of(local), local)
    assert value.item() == pytest.approx(-4.25)
    value.backward()
    assert float(local.net.body.u.grad) == pytest.approx(-2.0)


def test_clients_g_add_up_to_k_h_under_full_participation() -> None:
    task = skewed(4, train_size=160, weight_decay=1e-3, lr=0.05)
    server, engine = several("feddyn(alpha=0.1)", task, 4)
    g = [engine.store.get(k).kept["feddyn"]["g"] for k in range(4)]
    for name, h in server.kept["feddyn"]["h"].items():
        assert torch.allclose(sum(tree[name] for tree in g), 4 * h, atol=1e-5), name
    assert float(server.kept["feddyn"]["h"].sq_norm()) > 0


def test_running_statistics_take_the_plain_average_and_have_no_state() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
    server, reports, engine = one_round("feddyn", task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed))
    assert_same(server.stats, mean([r.stats for r in reports], [0.4, 0.6]))
    assert set(server.kept["feddyn"]["h"]) == set(server.w)
    assert set(engine.store.get(0).kept["feddyn"]["g"]) == set(server.w)


def test_g_is_never_sent() -> None:
    _, reports, _ = one_round("feddyn", skewed(3, train_size=60))
    assert all(r.sent == {} for r in reports)
