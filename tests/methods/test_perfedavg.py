"""Per-FedAvg, first order and Hessian-free: the meta step by hand, on quadratics exactly, and the one-step model."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import toy
from torch import Tensor, nn
from toy import Normed, OneWeight, fixed, local_of, one_round, several, slope, task_of, two_clients

from headway.base.tree import Tree
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.perfedavg import OneStep, PerFedAvg
from headway.training import rounds
from headway.training.client import personal_net


class Plane(nn.Module):
    """h = A x, 2 -> 2, without bias: under a fixed classifier and the squared error the loss is a quadratic of A."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.dim = nn.Linear(2, 2, bias=False), 2
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[0.3, -0.2], [0.1, 0.5]]))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def single(**given):
    """One client with x = 1 of class 0; h = u x, z = (h, -h). mse: L = ((u - 1)^2 + u^2)/2, L' = 2 u - 1, L'' = 2."""
    return task_of(
        [1.0], [0], [[0]], body=lambda: OneWeight(0.0), first=fixed([[1.0], [-1.0]]), bias=False, **given
    )  # fmt: skip


def test_first_order_by_hand() -> None:
    # w' = 0 - 0.1 * (-1) = 0.1; g' = 2 * 0.1 - 1 = -0.8; w = 0 + 0.5 * 0.8 = 0.4
    server, _, _ = one_round("perfedavg(alpha=0.1,beta=0.5)+babu+mse", single())
    assert float(server.w["body.u"]) == pytest.approx(0.4)


def test_hessian_free_by_hand() -> None:
    # g' = -0.8 as above; (1 - alpha L'') g' = (1 - 0.2)(-0.8) = -0.64; w = 0.5 * 0.64 = 0.32
    server, _, _ = one_round("perfedavg(order=hf,alpha=0.1,beta=0.5)+babu+mse", single())
    assert float(server.w["body.u"]) == pytest.approx(0.32, rel=1e-3)


@pytest.mark.parametrize("alpha", [0.05, 0.4])
def test_hessian_free_equals_the_exact_meta_gradient_on_a_quadratic(alpha: float) -> None:
    # grad of f(w - alpha grad f(w)) = (I - alpha H) g'; on a quadratic the difference is exact for any delta
    x, y = [[1.0, 2.0], [-1.0, 0.5], [0.3, -2.0]], [0, 1, 1]
    task = task_of(x, y, [[0, 1, 2]], body=Plane, first=fixed([[1.0, 0.5], [-0.5, 1.0]]), bias=False)
    recipe = parse(f"perfedavg(order=hf,alpha={alpha},beta=1,delta=0.5)+babu+mse")
    server, _, _ = one_round(recipe, task)
    net = task.net(recipe)
    W, data, target = (
        net.head.weight.double(),
        torch.tensor(x).double(),
        nn.functional.one_hot(torch.tensor(y)).double(),
    )

    def f(A: Tensor) -> Tensor:
        return (data @ A.view(2, 2).T @ W.T - target).square().mean()

    def meta(A: Tensor) -> Tensor:
        return f(A - alpha * torch.autograd.functional.jacobian(f, A, create_graph=True))

    A = net.body.fc.weight.detach().double().flatten()
    exact = torch.autograd.functional.jacobian(meta, A)
    moved = (server.w["body.fc.weight"].double().flatten() - A) / -1.0
    assert torch.allclose(moved, exact, atol=1e-5)
    g = torch.autograd.functional.jacobian(f, A - alpha * torch.autograd.functional.jacobian(f, A))
    assert not torch.allclose(g, exact, atol=1e-3)  # the Hessian matters here


def test_first_order_equals_hessian_free_as_alpha_vanishes() -> None:
    def gap(alpha: float) -> float:
        ends = [
            one_round(f"perfedavg(order={order},alpha={alpha},beta=1)+babu+mse", single())[0].w["body.u"]
            for order in ("fo", "hf")
        ]
        return float((ends[0] - ends[1]).abs())

    assert gap(0.2) == pytest.approx(0.2 * 2 * 0.6, rel=1e-2)  # alpha H g'
    assert gap(1e-5) < 1e-4


def test_as_alpha_vanishes_the_first_order_step_is_sgd() -> None:
    server, _, _ = one_round("perfedavg(alpha=1e-9)+babu", two_clients(start=0.7))
    plain, _, _ = one_round("fedavg+babu", two_clients(start=0.7, aggregation="uniform"))
    assert float(server.w["body.u"]) == pytest.approx(float(plain.w["body.u"]), rel=1e-5)


def test_both_steps_default_to_the_rounds_learning_rate() -> None:
    # full batches: D = D' = all data; w' = u - eta f'(u), u <- u - eta f'(w'), two rounds under a decay of 1/2
    server, _ = several("perfedavg+babu", two_clients(start=0.5, lr=0.4, lr_decay=0.5), 2)
    u = 0.5
    for eta in (0.4, 0.2):
        ends = [u - eta * slope(u - eta * slope(u, xs, y), xs, y) for xs, y in (([2.0], 0), ([1.0, 2.0], 1))]
        u = sum(ends) / 2  # uniform over clients, whatever their sizes
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)


def test_momentum_acts_on_the_outer_step_alone() -> None:
    # v = 0.9 v + g'(u - alpha g(u)); the inner step knows no momentum
    server, _, _ = one_round("perfedavg(alpha=0.1,beta=0.5)+babu+mse", single(momentum=0.9, epochs=3))
    u, v = 0.0, 0.0
    for _ in range(3):
        v = 0.9 * v + (2 * (u - 0.1 * (2 * u - 1)) - 1)
        u -= 0.5 * v
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-5)


@pytest.mark.parametrize(("order", "batches"), [("fo", [0, 1]), ("hf", [0, 1, 2, 2])])
def test_three_batches_are_independent_and_only_the_outer_pass_moves_running_statistics(order: str, batches) -> None:
    calls = []

    def grad(at=None, batch=0, still=False):
        calls.append((batch, still, None if at is None else float(at["body.u"])))
        return Tree({"body.u": torch.tensor(10.0 * (batch + 1))})

    local = local_of(two_clients(start=1.0), "perfedavg+babu")
    g = PerFedAvg(order=order, alpha=0.01, delta=0.1).gradient(grad, local)
    assert [b for b, _, _ in calls] == batches
    assert [still for _, still, _ in calls] == [b != 1 for b in batches]
    assert calls[1][2] == pytest.approx(1.0 - 0.01 * 10)  # w' = w - alpha g on D
    if order == "hf":  # g' = 20 on D'; the difference is taken at w +- delta g', around w, not around w'
        assert [at for _, _, at in calls[2:]] == pytest.approx([1.0 + 2.0, 1.0 - 2.0])
    assert float(g["body.u"]) == 20.0  # both ends gave 30: the Hessian term is zero
    assert local.net.body.u.item() == 1.0


def test_the_drawn_batches_come_from_the_clients_data_and_differ() -> None:
    seen: list[Tensor] = []

    class Seeing(OneWeight):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.detach().flatten().clone())
            return super().forward(x)

    x = [float(i) for i in range(1, 41)]
    task = task_of(x, [0, 1] * 20, [list(range(40))], body=Seeing, batch_size=10)
    one_round("perfedavg(order=hf)", task)
    assert len(seen) == 4 * 4  # four steps of D, D', D'', D''
    for step in range(4):
        d, d1, d2, again = seen[4 * step : 4 * step + 4]
        assert all(len(part) == 10 and part.unique().numel() == 10 for part in (d, d1, d2))
        assert not torch.equal(d1, d2)
        assert not torch.equal(d, d1)
        assert torch.equal(d2, again)  # the same D'' on both sides of the difference
    assert torch.cat(seen[::4]).unique().numel() == 40  # the steps' own batches are still the epoch


def test_running_statistics_move_once_a_step() -> None:
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0]]
    task = task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed, epochs=2)
    meta, _, _ = one_round("perfedavg(order=hf,alpha=1e-9,beta=1e-9)", task)
    plain, _, _ = one_round("fedavg", task_of(x, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Normed, epochs=2, lr=1e-9))
    for name, v in plain.stats.items():
        assert torch.allclose(meta.stats[name], v, atol=1e-6), name


@pytest.mark.parametrize("bn", ["running", "batch"])
def test_a_client_with_one_sample_can_take_part(bn: str) -> None:
    task = task_of(
        [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0]], [0, 1, 0], [[0], [1, 2]], body=lambda: Normed(track=bn == "running")
    )
    server, _, _ = one_round("perfedavg(order=hf)", task)
    assert all(v.isfinite().all() for v in server.w.values())


# ---- one_step: the personal model
def adapted(text: str, task, k: int = 0) -> tuple[float, list[str]]:
    recipe = parse(text)
    server, engine = several(recipe, task, 1)
    cast = rounds.cast_of(replace(server, w=task.first_params(recipe)), recipe)
    phases = rounds.personal_phases(recipe, task)
    stages = [
        (stage, copy.deepcopy(net))
        for stage, net in personal_net(recipe, task, cast, engine.client(recipe, task, cast, k), phases)
    ]
    return stages[-1][1].body.u.item(), [stage for stage, _ in stages]


def test_the_personal_model_of_perfedavg_is_one_step_of_its_alpha() -> None:
    assert OneStep(steps=1, lr=0.3) in parse("perfedavg(alpha=0.3)").pieces
    assert OneStep() in parse("perfedavg").pieces
    assert parse("perfedavg+ft").names == "perfedavg+finetune"  # unless another personalisation is named
    u, stages = adapted("perfedavg(alpha=0.3)+babu", two_clients(start=0.5))
    assert stages == ["received", "adapted"]
    assert u == pytest.approx(0.5 - 0.3 * slope(0.5, [2.0], 0), rel=1e-5)


def test_one_step_is_one_plain_gradient_step_on_the_clients_training_data() -> None:
    # no momentum although the task has it, plain gradient although the rounds take meta steps
    u, stages = adapted("perfedavg+one_step+babu", two_clients(start=0.5, momentum=0.9, epochs=4), k=1)
    assert stages == ["received", "adapted"]
    assert u == pytest.approx(0.5 - 0.1 * slope(0.5, [1.0, 2.0], 1), rel=1e-5)


def test_a_few_steps_with_a_rate_of_their_own() -> None:
    u, _ = adapted("perfedavg+one_step(steps=3,lr=0.3)+babu", two_clients(start=0.5, momentum=0.9))
    expected = 0.5
    for _ in range(3):
        expected -= 0.3 * slope(expected, [2.0], 0)
    assert u == pytest.approx(expected, rel=1e-5)


def test_a_step_is_a_batch_and_not_an_epoch() -> None:
    # four equal samples in batches of one: one step moves once
    task = task_of(
        [2.0] * 4, [0] * 4, [[0, 1, 2, 3]], body=lambda: OneWeight(0.5), first=fixed([[1.0], [-1.0]]), bias=False,
        batch_size=1,
    )  # fmt: skip
    u, _ = adapted("fedavg+one_step+babu", task)
    assert u == pytest.approx(0.5 - 0.1 * slope(0.5, [2.0], 0), rel=1e-5)


def test_one_step_leaves_penalties_out() -> None:
    u, _ = adapted("fedprox(mu=100)+one_step(steps=2)+babu", two_clients(start=0.5))
    expected = 0.5
    for _ in range(2):
        expected -= 0.1 * slope(expected, [2.0], 0)
    assert u == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("order", ["fo", "hf"])
def test_per_fedavg_steps_personal_parameters_by_beta_too(order):
    # a thousandth of the outer step moves body and head a thousandth as far
    def moved(beta):
        task = toy.two_clients(start=1.0)
        _, engine = toy.several(f"perfedavg(order={order},beta={beta})+fedper", task, 1)
        return [float((engine.store.get(0).personal["head.weight"] - torch.tensor([[1.0], [-1.0]])).norm())]

    assert moved(0.0001)[0] == pytest.approx(moved(0.1)[0] / 1000, rel=1e-2)


def test_one_step_is_the_gradient_alone():
    # h = u x with u = 0: the classifier's gradient is 0, so whatever the weight decay it must not move
    task, recipe = toy.two_clients(weight_decay=10.0), parse("perfedavg(alpha=0.1)+one_step")
    server, engine = rounds.begin(recipe, task), LocalEngine()
    phases = rounds.personal_phases(recipe, task)
    (result,) = engine.personal(recipe, task, rounds.cast_of(server, recipe), [0], phases, True)
    assert result.tensors["head.weight"].flatten().tolist() == [1.0, -1.0]
