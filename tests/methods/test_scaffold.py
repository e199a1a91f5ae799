"""SCAFFOLD, option II: control variates on two clients by hand, and what holds for any federation."""

from __future__ import annotations

import pytest
import torch
from toy import (
    Normed,
    arrived_at,
    assert_same,
    assert_trains_like_fedavg,
    local_of,
    normed,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.base.tree import Tree, mean
from headway.core.state import Report
from headway.methods import recipe as parse
from headway.methods.scaffold import Scaffold

DATA = [([2.0], 0), ([1.0, 2.0], 1)]


def t(value: float) -> Tree:
    return Tree({"u": torch.tensor(value)})


def played_by_hand(rounds: int, steps: int, rho: float, eta_g: float = 1.0, lr: float = 0.1):
    """(u, c, [c_0, c_1]) of the two clients under a frozen head, with numbers instead of trees."""
    u, c, c_k = 0.0, 0.0, [0.0, 0.0]
    weight = sum(sum(rho**j for j in range(s + 1)) for s in range(steps))  # of all gradients in the displacement
    for _ in range(rounds):
        ends, deltas = [], []
        for k, (xs, y) in enumerate(DATA):
            w, v = u, 0.0
            for _ in range(steps):
                v = rho * v + slope(w, xs, y) - c_k[k] + c
                w -= lr * v
            plus = c_k[k] - c + (u - w) / (weight * lr)
            deltas.append(plus - c_k[k])
            c_k[k] = plus
            ends.append(w)
        u += eta_g * ((ends[0] - u) / 3 + 2 * (ends[1] - u) / 3)
        c += sum(deltas) / 2
    return u, c, c_k


def test_first_round_by_hand() -> None:
    # one step from c = 0: c_0 = g_0 = -2, c_1 = g_1 = 1.5, c = (-2 + 1.5) / 2; u as in FedAvg, -1/30
    server, _, engine = one_round("scaffold+babu", two_clients())
    assert float(engine.store.get(0).kept["scaffold"]["c"]["body.u"]) == pytest.approx(-2.0)
    assert float(engine.store.get(1).kept["scaffold"]["c"]["body.u"]) == pytest.approx(1.5)
    assert float(server.kept["scaffold"]["c"]["body.u"]) == pytest.approx(-0.25)
    assert float(server.w["body.u"]) == pytest.approx(-1 / 30)


@pytest.mark.parametrize(("rho", "epochs", "eta_g"), [(0.0, 1, 1.0), (0.0, 3, 1.0), (0.9, 3, 1.0), (0.5, 2, 0.25)])
def test_three_rounds_by_hand(rho: float, epochs: int, eta_g: float) -> None:
    server, engine = several(f"scaffold(server_lr={eta_g})+babu", two_clients(momentum=rho, epochs=epochs), 3)
    u, c, c_k = played_by_hand(3, epochs, rho, eta_g)
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)
    assert float(server.kept["scaffold"]["c"]["body.u"]) == pytest.approx(c, rel=1e-4)
    for k in (0, 1):
        assert float(engine.store.get(k).kept["scaffold"]["c"]["body.u"]) == pytest.approx(c_k[k], rel=1e-4)


def test_client_step_is_g_minus_c_k_plus_c() -> None:
    local = local_of(two_clients(), "scaffold", kept={"c": t(2.0)}, sent={"c": t(0.5)})
    assert_same(Scaffold().correct(t(7.0), local), t(7.0 - 2.0 + 0.5))


def test_new_control_variate_is_option_two() -> None:
    # c_k+ = c_k - c + (w^t - w_k) / (K_eff eta) = 2 - 0.5 + (1 - 0.2) / (4 * 0.1) = 3.5
    task = two_clients(lr=0.1)
    local = local_of(task, "scaffold", kept={"c": t(2.0)}, sent={"c": t(0.5)})
    local.w0.clear()
    local.w0.update(t(1.0))
    local.k_eff.clear()
    local.k_eff.update(t(4.0))
    sent, kept = Scaffold().report(t(0.2), local)
    assert float(kept["c"]["u"]) == pytest.approx(3.5)
    assert float(sent["delta_c"]["u"]) == pytest.approx(1.5)


@pytest.mark.parametrize(("control", "expected"), [("participation", 1.0 + 3 / 10), ("none", 1.0 + 3 / 2)])
def test_server_control_variate_moves_by_the_share_that_took_part(control: str, expected: float) -> None:
    # c + (1/K) sum_k Delta c_k, K = 10 clients of which 2 answer with 1 and 2; `none`: the mean over the two
    reports = [Report(k, 1, 1, Tree(), Tree(), {"delta_c": t(d)}) for k, d in ((0, 1.0), (1, 2.0))]
    kept = Scaffold(control=control).absorb(arrived_at(t(0.0), reports, kept={"c": t(1.0)}, num_clients=10))
    assert float(kept["c"]["u"]) == pytest.approx(expected)


def test_server_step_is_eta_g_times_the_mean_update() -> None:
    w = Scaffold(server_lr=0.25).server_step(t(3.0), arrived_at(t(1.0)))
    assert float(w["u"]) == 1.5  # 1 + 0.25 (3 - 1)


def test_partial_participation_divides_by_all_clients() -> None:
    server, (report,), engine = one_round("scaffold+babu", two_clients(sampling=0.5))
    c_k = float(engine.store.get(report.client).kept["scaffold"]["c"]["body.u"])
    assert float(server.kept["scaffold"]["c"]["body.u"]) == pytest.approx(c_k / 2)


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_full_participation_c_is_the_mean_of_c_k(rho: float) -> None:
    task = skewed(4, train_size=160, momentum=rho, weight_decay=1e-3)
    for n in (1, 3):
        server, engine = several("scaffold", task, n)
        c_k = [engine.store.get(k).kept["scaffold"]["c"] for k in range(4)]
        for name, c in mean(c_k, [0.25] * 4).items():
            assert torch.allclose(server.kept["scaffold"]["c"][name], c, atol=1e-5), name


def test_one_step_without_momentum_c_k_is_that_batchs_gradient() -> None:
    # also in later rounds, where c and c_k are not zero: they cancel
    task = two_clients(start=0.5)
    server, engine = several("scaffold+babu", task, 2)
    u = float(server.w["body.u"])
    _, _, engine = one_round("scaffold+babu", task, server, engine)
    assert float(engine.store.get(0).kept["scaffold"]["c"]["body.u"]) == pytest.approx(slope(u, [2.0], 0), rel=1e-4)
    found = engine.store.get(1).kept["scaffold"]["c"]["body.u"]
    assert float(found) == pytest.approx(slope(u, [1.0, 2.0], 1), rel=1e-4)


def test_c_k_is_a_mean_gradient_whatever_the_momentum() -> None:
    # gradients that hardly change (tiny lr): K_eff makes c_k the gradient; tau would make it up to 1/(1-rho) too large
    _, engine = several("scaffold+babu", two_clients(momentum=0.9, epochs=20, lr=1e-3), 1)
    assert float(engine.store.get(0).kept["scaffold"]["c"]["body.u"]) == pytest.approx(-2.0, rel=0.2)


def test_first_round_equals_fedavg() -> None:
    assert_trains_like_fedavg("scaffold", n=1, bitwise=False)  # w + (w_new - w) rounds
    with pytest.raises(AssertionError):
        assert_trains_like_fedavg("scaffold", n=2, bitwise=False)


@pytest.mark.parametrize(
    ("head", "names"), [("babu", {"body.u"}), ("fedper", {"body.u"}), ("prox", {"body.u", "head.weight"})]
)
def test_control_variates_exist_for_shared_parameters_only(head: str, names: set[str]) -> None:
    server, reports, engine = one_round(f"scaffold+{head}", two_clients(start=1.0))
    assert server.kept["scaffold"]["c"].keys() == names
    assert engine.store.get(0).kept["scaffold"]["c"].keys() == names
    assert reports[0].sent["scaffold"]["delta_c"].keys() == names


def test_a_shared_parameter_that_nobody_trains_has_no_control_variate_to_speak_of() -> None:
    # FedTC's received classifier: K_eff is infinite, so c stays zero and nothing is NaN
    server, _ = several("scaffold+fedtc", two_clients(start=1.0), 2)
    assert server.kept["scaffold"]["c"]["head.received.weight"].tolist() == [[0.0], [0.0]]
    assert float(server.kept["scaffold"]["c"]["body.u"]) != 0


def test_batchnorm_statistics_take_the_plain_average() -> None:
    task = task_of([[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]], [0, 1, 0, 1], [[0, 1], [2, 3]], body=Normed)
    server, reports, _ = one_round("scaffold(server_lr=0.1)", task)
    assert_same(server.stats, mean([r.stats for r in reports], [0.5, 0.5]))
    assert not any("running" in name for name in server.kept["scaffold"]["c"])


def test_scaffolds_controls_exist_for_parameters_only_and_are_written_back() -> None:
    task = normed()
    server, _, engine = one_round("scaffold", task)
    params = set(task.first_params(parse("scaffold")))
    assert set(server.kept["scaffold"]["c"]) == params
    first = engine.store.get(0).kept["scaffold"]["c"]
    assert set(first) == params
    assert float(first.sq_norm()) > 0
    _, _, engine = one_round("scaffold", task, server, engine)
    second = engine.store.get(0).kept["scaffold"]["c"]
    assert float((second - first).sq_norm()) > 0  # the next round starts from them and changes them again


def test_scaffolds_controls_skip_a_frozen_classifier() -> None:
    server, _, _ = one_round("scaffold+etf", skewed(2, train_size=60))
    assert not any(name.startswith("head.") for name in server.kept["scaffold"]["c"])
