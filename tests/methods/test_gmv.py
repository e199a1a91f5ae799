"""Global memory vectors: the mean of a class over its owners, added to features in training."""

from __future__ import annotations

import pytest
import torch
from toy import (
    Normed,
    arrived_at,
    assert_same,
    assert_trains_like_fedavg,
    local_of,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
)

from headway.base.tree import Tree
from headway.core.state import Report
from headway.methods import recipe as parse
from headway.methods.gmv import GMV
from headway.training import rounds


def answer(k: int, owns: list[bool], mean: list[list[float]], n: int = 1) -> Report:
    return Report(k, n, 1, Tree(), Tree(), {"owns": torch.tensor(owns), "mean": torch.tensor(mean)})


def test_memory_is_the_mean_over_the_owners_only() -> None:
    # class 0: clients 0 and 1, (2 + 4) / 2 = 3, not 6 / 3 and not weighed by n; class 1: client 2 alone
    reports = [
        answer(0, [True, False], [[2.0, 1.0], [0.0, 0.0]], n=1),
        answer(1, [True, False], [[4.0, 3.0], [0.0, 0.0]], n=99),
        answer(2, [False, True], [[0.0, 0.0], [7.0, 8.0]]),
    ]
    kept = GMV().absorb(arrived_at(Tree(), reports, kept={"mu": torch.full((2, 2), 5.0)}, num_clients=10))
    assert kept["mu"].tolist() == [[3.0, 2.0], [7.0, 8.0]]  # replaced, not mixed with the 5 from before


def test_memory_of_a_class_nobody_owns_stays() -> None:
    reports = [answer(0, [True, False], [[2.0], [0.0]])]
    assert GMV().absorb(arrived_at(Tree(), reports, kept={"mu": torch.tensor([[5.0], [6.0]])}))["mu"].tolist() == [
        [2.0],
        [6.0],
    ]


def test_memory_that_never_existed_is_zero() -> None:
    reports = [answer(0, [True, False], [[2.0], [0.0]])]
    assert GMV().absorb(arrived_at(Tree(), reports))["mu"].tolist() == [[2.0], [0.0]]
    assert GMV().broadcast({}) == {}  # nothing is sent before there is a memory
    server, _ = several("gmv(warmup=1)+babu", two_clients(sampling=0.5), 1)  # one client, one class
    rows = server.kept["gmv"]["mu"].flatten().tolist()
    assert sum(v == 0 for v in rows) == 1


def test_feature_in_training_is_h_plus_alpha_mu_of_its_label() -> None:
    local = local_of(two_clients(), "gmv", t=7, sent={"mu": torch.tensor([[10.0], [20.0]])})
    h, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 1])
    assert GMV(alpha=0.1, warmup=7).lift(h, y, local).flatten().tolist() == pytest.approx([2.0, 4.0, 5.0])
    assert torch.equal(GMV(alpha=0.1, warmup=8).lift(h, y, local), h)  # t < R_warm


def test_two_rounds_by_hand() -> None:
    # R_warm = 1: round 0 is plain and collects mu = (2 u_0, 1.5 u_1); round 1 trains on u x + 0.5 mu_y
    recipe, task = "gmv(alpha=0.5,warmup=1)+babu", two_clients()
    server, _, engine = one_round(recipe, task)
    assert server.kept["gmv"]["mu"].flatten().tolist() == pytest.approx([2 * 0.2, 1.5 * -0.15])
    u = float(server.w["body.u"])
    assert u == pytest.approx(-1 / 30)
    server, reports, _ = one_round(recipe, task, server, engine)
    u_0 = u - 0.1 * slope(u, [2.0], 0, shift=0.5 * 0.4)
    u_1 = u - 0.1 * slope(u, [1.0, 2.0], 1, shift=0.5 * -0.225)
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx([u_0, u_1], rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(u_0 / 3 + 2 * u_1 / 3, rel=1e-4)
    # the new memory is of h, not of h' = h + alpha mu: it must not feed on itself
    assert server.kept["gmv"]["mu"].flatten().tolist() == pytest.approx([2 * u_0, 1.5 * u_1], rel=1e-5)


def test_collecting_starts_one_round_before_the_memory_is_used() -> None:
    recipe, task = "gmv(warmup=3)+babu", two_clients()
    server, engine = None, None
    sent = []
    for _ in range(4):
        server, reports, engine = one_round(recipe, task, server, engine)
        sent.append("gmv" in reports[0].sent)
    assert sent == [False, False, True, True]


def test_until_the_warmup_ends_it_is_fedavg() -> None:
    assert_trains_like_fedavg("gmv(warmup=3,alpha=1)", n=3)  # rounds 0, 1, 2
    with pytest.raises(AssertionError):
        assert_trains_like_fedavg("gmv(warmup=3,alpha=1)", n=4, bitwise=False)


def test_alpha_zero_is_fedavg() -> None:
    assert_trains_like_fedavg("gmv(alpha=0,warmup=1)")


def test_what_a_client_sends_is_its_class_means_and_which_it_owns() -> None:
    _, reports, _ = one_round("gmv(warmup=1)+babu", two_clients())
    assert reports[0].sent["gmv"].keys() == {"owns", "mean"}
    assert reports[1].sent["gmv"]["owns"].tolist() == [False, True]
    assert reports[1].sent["gmv"]["mean"].flatten().tolist() == pytest.approx([0.0, 1.5 * -0.15])


def test_class_means_are_taken_in_eval_mode_by_the_trained_model() -> None:
    x = [[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed)
    recipe = parse("gmv(warmup=1)")
    server, (report,), _ = one_round(recipe, task)
    h = rounds.global_net(server, recipe, task).features(task.data[0][0]).detach()  # one client: global = local
    assert torch.allclose(report.sent["gmv"]["mean"], torch.stack([h[[0, 2]].mean(0), h[[1, 3]].mean(0)]), atol=1e-6)


def test_collecting_leaves_running_statistics_alone() -> None:
    x = [[1.0, 0.0], [3.0, 2.0], [0.0, 1.0], [4.0, 5.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed)
    found, plain = (one_round(r, task)[1][0].stats for r in ("gmv(warmup=1)", "fedavg"))
    assert_same(found, plain)


def test_memory_carries_no_gradient_to_the_body() -> None:
    mu = torch.ones(2, 1, requires_grad=False)
    local = local_of(two_clients(), "gmv", t=5, sent={"mu": mu})
    h = torch.tensor([[1.0]], requires_grad=True)
    GMV(alpha=0.5, warmup=1).lift(h, torch.tensor([0]), local).sum().backward()
    assert h.grad.tolist() == [[1.0]]


def test_prediction_uses_no_memory() -> None:
    task = skewed(3, train_size=90)
    server, _ = several("etf+gmv(warmup=1,alpha=1)", task, 3)
    assert server.kept["gmv"]["mu"].abs().max() > 0.1
    net = rounds.global_net(server, parse("etf+gmv(warmup=1,alpha=1)"), task)
    x = task.dataset.x[:5]
    assert torch.equal(net(x), net.head(net.features(x)))
    assert torch.equal(net(x), rounds.global_net(server, parse("etf"), task)(x))


def test_gmv_last_epoch_means_the_features_before_each_step() -> None:
    # client 0 has x = 2, one step an epoch: the last epoch sees h = 2 u1, the final model gives h = 2 u2
    task = two_clients(epochs=2)
    _, seen, _ = one_round("gmv(warmup=1,collect=last_epoch)+babu", task)
    _, final, _ = one_round("gmv(warmup=1)+babu", task)
    u1 = -0.1 * slope(0.0, [2.0], 0)
    u2 = u1 - 0.1 * slope(u1, [2.0], 0)
    assert seen[0].sent["gmv"]["mean"].flatten().tolist() == pytest.approx([2 * u1, 0.0], rel=1e-5)
    assert final[0].sent["gmv"]["mean"].flatten().tolist() == pytest.approx([2 * u2, 0.0], rel=1e-5)
    assert_same(seen[0].w, final[0].w)


def test_features_are_gathered_only_for_those_who_ask() -> None:
    asked = "features of the last epoch"
    assert asked in GMV(collect="last_epoch").requires()
    assert asked not in GMV().requires()
    assert asked not in parse("fedetf+moon").requires()
