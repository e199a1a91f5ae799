"""FedAwS: the server pushes class vectors apart after each aggregation."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize
from toy import arrived_at, assert_same, one_round, several, skewed

from headway.base.names import in_body
from headway.base.tree import Tree
from headway.methods import recipe as parse
from headway.methods.spread import Spread


def spread(W: torch.Tensor, **how: float) -> torch.Tensor:
    return Spread(**how).server_step(Tree({"head.weight": W}), arrived_at(Tree()))["head.weight"]


def cosines(W: torch.Tensor) -> torch.Tensor:
    unit = normalize(W, dim=1)
    return (unit @ unit.T)[~torch.eye(len(W), dtype=torch.bool)]


def test_one_step_by_hand() -> None:
    # w_0 = (1, 0), w_1 = (0, 1): d = 1/2, nu = 0.8: reg = 1/4 * 2 * 0.3^2; d reg/d cos = 1/4 * 2 * 2 * 0.3 / 2 = 0.15
    # for unit vectors at a right angle d cos/d w_0 = w_1: w_0 - lr 0.15 w_1
    W = spread(torch.eye(2), nu=0.8, steps=1, lr=0.1)
    assert torch.allclose(W, torch.tensor([[1.0, -0.015], [-0.015, 1.0]]), atol=1e-7)


def test_three_classes_count_over_c_squared() -> None:
    # pairs (0, 1), (0, 2), (1, 2) at right angles: 1/9 * 2 * 2 * 0.3 / 2 = 1/15 for each pair
    W = spread(torch.eye(3), nu=0.8, steps=1, lr=0.3)
    assert torch.allclose(W, torch.eye(3) - 0.3 / 15 * (1 - torch.eye(3)), atol=1e-6)


def test_the_second_step_has_momentum() -> None:
    # with a tiny lr the gradient stays 0.15: displacements 1 and 1.9, in all 2.9 steps
    lr = 1e-4
    W = spread(torch.eye(2, dtype=torch.float64), nu=0.8, steps=2, lr=lr)
    assert float(-W[0, 1] / (0.15 * lr)) == pytest.approx(2.9, rel=1e-3)


@pytest.mark.parametrize("nu", [0.5, 0.3])
def test_vectors_further_apart_than_nu_rest(nu: float) -> None:
    # opposite vectors: d = 1; orthogonal ones d = 1/2
    W = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert torch.equal(spread(W, nu=nu, steps=20, lr=1.0), W)
    assert torch.equal(spread(torch.eye(3), nu=nu, steps=20, lr=1.0), torch.eye(3))


def test_cosines_go_down_towards_the_wanted_angle() -> None:
    rng = torch.Generator().manual_seed(0)
    W = torch.rand(5, 8, generator=rng) + 0.5
    before, after = cosines(W), cosines(spread(W, steps=200, lr=1.0))
    assert float(before.min()) > 0.7
    assert float(after.max()) < 0.1  # nu = 0.5: orthogonal or further apart


def test_a_vector_is_not_pushed_from_itself() -> None:
    W = torch.tensor([[3.0, 4.0]])
    assert torch.equal(spread(W, nu=1.0, steps=10, lr=1.0), W)


def test_only_the_classifiers_weight_moves_and_only_on_the_server() -> None:
    task = skewed(3, train_size=90)
    (aws, reports, _), (plain, plain_reports, _) = one_round("fedaws(lr=1)", task), one_round("fedavg", task)
    assert_same([r.w for r in reports], [r.w for r in plain_reports])
    assert_same(aws.w.only(in_body), plain.w.only(in_body))
    assert torch.equal(aws.w["head.bias"], plain.w["head.bias"])
    expected = spread(plain.w["head.weight"], steps=50, lr=1.0)
    assert torch.equal(aws.w["head.weight"], expected)
    assert not torch.equal(expected, plain.w["head.weight"])


def test_it_comes_after_the_bases_own_step() -> None:
    task = skewed(3, train_size=90)
    (both, _, _), (momentum, _, _) = (
        one_round("fedavgm(server_lr=0.5)+spread(lr=1)", task),
        one_round("fedavgm(server_lr=0.5)", task),
    )
    assert torch.equal(both.w["head.weight"], spread(momentum.w["head.weight"], lr=1.0))


def test_clients_start_the_next_round_from_the_spread_classifier() -> None:
    task = skewed(3, train_size=90)
    server, _ = several("fedaws(lr=5,steps=100,nu=0.5)", task, 3)
    plain, _ = several("fedavg", task, 3)
    assert float(cosines(server.w["head.weight"]).max()) < float(cosines(plain.w["head.weight"]).max())
    assert Spread(nu=0.8, steps=30, lr=0.1) in parse("fedaws(nu=0.8,steps=30,lr=0.1)").pieces
