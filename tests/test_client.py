"""The inner loop: batches, steps, modes, momentum, clipping, decay and randomness of one client's round."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from toy import Normed, OneWeight, assert_same, one_round, several, skewed, slope, task_of, two_clients, watching

from headway import rounds
from headway.client import batch_plan, first_client, gradient_weights, personal_net, train_client
from headway.engine import LocalEngine
from headway.errors import ConfigError
from headway.local import Batch, Local, Phase, effective_steps, in_body, in_head
from headway.methods import recipe as parse
from headway.methods.fedavg import FedAvg
from headway.models.net import Net
from headway.piece import Piece
from headway.recipes import Recipe
from headway.tree import Tree


def table(n: int, **given):
    """One client with n samples of two features and alternating labels."""
    x = [[float(i), float(i % 3)] for i in range(n)]
    return task_of(x, [i % 2 for i in range(n)], [list(range(n))], **given)


@dataclass(frozen=True)
class Schedule(Piece):
    """A piece that sets the phases and nothing else."""

    name, slot = "schedule", "share"
    plan: tuple[Phase, ...] = ()

    def phases(self, epochs: int) -> list[Phase]:
        return list(self.plan)


def scheduled(*plan: Phase, head: str = "fedavg") -> Recipe:
    return Recipe((*parse(head).pieces, Schedule(plan)))


# ---- batches


@pytest.mark.parametrize(
    ("n", "size", "plain", "normed", "lone"),
    [
        (10, 4, 3, 3, False),  # 4 + 4 + 2: the last incomplete batch is kept
        (9, 4, 3, 2, False),  # 4 + 4 + 1: BatchNorm cannot use the last one
        (5, 4, 2, 1, False),
        (8, 4, 2, 2, False),
        (3, 32, 1, 1, False),  # smaller than a batch
        (2, 32, 1, 1, False),
        (1, 32, 1, 1, True),  # one example in all: it trains
        (3, 1, 3, 3, True),  # batches of one by request
    ],
)
def test_batch_plan(n: int, size: int, plain: int, normed: int, lone: bool) -> None:
    task = table(n, batch_size=size)
    net = task.net(parse("fedavg"))
    plan = batch_plan(task, net, Phase(3), n)
    assert (plan.batches, plan.steps, plan.lone_sample) == (plain, 3 * plain, False)
    task = table(n, batch_size=size, body=Normed)
    plan = batch_plan(task, task.net(parse("fedavg")), Phase(3), n)
    assert (plan.batches, plan.steps, plan.lone_sample) == (normed, 3 * normed, lone)


@pytest.mark.parametrize(("body", "sizes"), [(None, [4, 1, 4, 1]), (Normed, [4, 4])])
def test_a_batch_of_one_is_skipped_only_under_batchnorm(body, sizes) -> None:
    seen: list[int] = []
    task = table(5, batch_size=4, epochs=2, body=body)
    _, (report,), _ = one_round(watching(lambda batch, local: seen.append(len(batch.y))), task)
    assert seen == sizes
    assert report.steps == len(sizes)
    assert report.n == 5


def test_an_epoch_sees_every_sample_once_in_an_order_of_its_own() -> None:
    order: list[list[float]] = []
    task = table(7, batch_size=3, epochs=2)
    recipe = watching(lambda batch, local: order.append(batch.x[:, 0].tolist()))
    server, _, engine = one_round(recipe, task)
    one_round(recipe, task, server, engine)
    epochs = [[v for part in order[i : i + 3] for v in part] for i in range(0, 12, 3)]
    assert [len(part) for part in order[:3]] == [3, 3, 1]
    assert all(sorted(epoch) == [0, 1, 2, 3, 4, 5, 6] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4  # two epochs of two rounds, four orders


def test_the_order_of_the_data_does_not_depend_on_the_method() -> None:
    def order(*pieces: str) -> list[float]:
        seen: list[float] = []
        one_round(watching(lambda batch, local: seen.extend(batch.x[:, 0].tolist()), *pieces), table(9, batch_size=2))
        return seen

    assert order("fedavg") == order("scaffold", "moon") == order("fedtc")


def test_a_client_smaller_than_a_batch_trains() -> None:
    server, _, _ = one_round("fedavg", two_clients(batch_size=32))
    assert float(server.w["body.u"]) != 0


def test_a_lone_sample_trains_under_batchnorm_on_the_running_statistics() -> None:
    task = task_of([[1.0, 2.0]], [0], [[0]], body=Normed)
    first = rounds.begin(parse("fedavg"), task)
    server, (report,), _ = one_round("fedavg", task)
    assert report.steps == 1
    assert_same(report.stats, first.stats)
    assert (server.w["body.bn.bias"] != first.w["body.bn.bias"]).any()
    assert all(torch.isfinite(v).all() for v in server.w.values())


@pytest.mark.parametrize(("parts", "size"), [([[0, 1], [2]], 32), ([[0, 1, 2]], 1)], ids=["lone sample", "batch of 1"])
def test_a_lone_sample_trains_where_batchnorm_has_no_running_statistics(parts, size) -> None:
    # bn=batch: there is nothing to fall back on, so such a batch must be passed over or doubled, never raise
    task = task_of([[1.0, 2.0], [2.0, 3.0], [3.0, 1.0]], [0, 1, 0], parts, batch_size=size, body=lambda: Normed(False))
    server, _, _ = one_round("fedavg", task)
    assert all(torch.isfinite(v).all() for v in server.w.values())


def test_reported_loss_is_the_mean_of_the_last_epoch() -> None:
    # client 0, one batch an epoch: after one step u = 0.2, z = (0.4, -0.4), loss = log(1 + e^-0.8)
    _, reports, _ = one_round("fedavg+babu", two_clients(epochs=2))
    assert reports[0].loss == pytest.approx(math.log1p(math.exp(-0.8)), rel=1e-6)


# ---- steps


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 3, 10, 40])
def test_effective_steps_equal_a_simulated_sgd(momentum: float, steps: int) -> None:
    p = nn.Parameter(torch.zeros((), dtype=torch.float64))
    sgd = torch.optim.SGD([p], lr=0.1, momentum=momentum)
    for _ in range(steps):
        p.grad = torch.ones((), dtype=torch.float64)
        sgd.step()
    assert effective_steps(steps, momentum) == pytest.approx(-p.item() / 0.1, rel=1e-12)


def test_effective_steps_by_hand() -> None:
    # rho = 1/2, 3 steps: buffers 1, 3/2, 7/4, together 4.25
    assert effective_steps(3, 0.5) == pytest.approx(4.25)
    assert effective_steps(3, 0.0) == 3
    assert effective_steps(0, 0.9) == 0


def k_eff(recipe: Recipe, task) -> dict[str, float]:
    net, phases = task.net(recipe), recipe.phases(task.epochs)
    plans = [batch_plan(task, net, phase, 2) for phase in phases]
    return {k: float(v) for k, v in gradient_weights(task, net, phases, plans, recipe, task.lr(0)).items()}


def test_gradient_weights_follow_the_phases() -> None:
    task = two_clients(batch_size=1, epochs=2, lr=0.1)  # two batches an epoch
    assert k_eff(parse("fedavg"), task) == {"body.u": 4, "head.weight": 4}
    assert k_eff(parse("fedrep(head_epochs=5)"), task) == {"body.u": 4}  # the head is personal
    assert k_eff(parse("fedtc"), task) == {"body.u": 4, "head.received.weight": math.inf}  # no phase trains it
    slow = scheduled(Phase(2, lr=lambda name: 0.5 if in_head(name) else 1.0))
    assert k_eff(slow, task) == {"body.u": 4, "head.weight": 2}
    two = scheduled(Phase(1, trains=in_body, rate=0.2), Phase(3))  # 2 steps at twice the rate, then 6
    assert k_eff(two, task) == {"body.u": pytest.approx(10), "head.weight": 6}
    rho = two_clients(batch_size=1, epochs=1, momentum=0.5)
    assert k_eff(parse("fedavg"), rho) == {"body.u": 2.5, "head.weight": 2.5}  # buffers 1 and 3/2


def test_momentum_by_hand() -> None:
    # v1 = g1, u1 = -lr v1, v2 = rho v1 + g2, u2 = u1 - lr v2
    _, reports, _ = one_round("fedbabu", two_clients(epochs=2, momentum=0.5))
    g1 = slope(0.0, [2.0], 0)
    u1 = -0.1 * g1
    u2 = u1 - 0.1 * (0.5 * g1 + slope(u1, [2.0], 0))
    assert g1 == -2.0
    assert float(reports[0].w["body.u"]) == pytest.approx(u2, rel=1e-6)


def test_momentum_starts_anew_every_round_and_is_not_kept() -> None:
    task = two_clients(momentum=0.9)  # one step a round
    server, _, engine = one_round("fedbabu", task)
    u = float(server.w["body.u"])
    _, reports, _ = one_round("fedbabu", task, server, engine)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.1 * slope(u, [2.0], 0), rel=1e-6)
    assert engine.store.ids() == []


def test_persisted_momentum_goes_on_from_the_last_round() -> None:
    task = two_clients(momentum=0.9, persist_momentum=True)
    server, _, engine = one_round("fedbabu", task)
    assert float(engine.store.get(0).momentum["body.u"]) == -2.0
    u = float(server.w["body.u"])
    _, reports, engine = one_round("fedbabu", task, server, engine)
    v = 0.9 * -2.0 + slope(u, [2.0], 0)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.1 * v, rel=1e-6)
    assert float(engine.store.get(0).momentum["body.u"]) == pytest.approx(v, rel=1e-6)


def test_momentum_starts_anew_in_every_phase() -> None:
    # two phases of one step, both on u: the second optimiser knows nothing of the first (and K_eff counts 1 + 1)
    recipe = scheduled(Phase(1), Phase(1), head="fedbabu")
    _, reports, _ = one_round(recipe, two_clients(momentum=0.5))
    u1 = 0.2
    assert float(reports[0].w["body.u"]) == pytest.approx(u1 - 0.1 * slope(u1, [2.0], 0), rel=1e-6)


def test_learning_rate_is_that_of_the_round() -> None:
    task = two_clients(lr=0.1, lr_decay="0.5@1")
    server, _, engine = one_round("fedbabu", task)
    u = float(server.w["body.u"])
    _, reports, _ = one_round("fedbabu", task, server, engine)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.05 * slope(u, [2.0], 0), rel=1e-6)


def test_a_factor_on_the_learning_rate_goes_by_name() -> None:
    task = two_clients(start=1.0)
    plain = one_round("fedavg", task)[1][0].w
    slow = one_round(scheduled(Phase(1, lr=lambda name: 0.25 if in_head(name) else 1.0)), task)[1][0].w
    first = task.first_params(parse("fedavg"))
    assert torch.equal(slow["body.u"], plain["body.u"])
    assert torch.allclose(slow["head.weight"] - first["head.weight"], (plain["head.weight"] - first["head.weight"]) / 4)


def test_a_phase_may_have_a_rate_of_its_own() -> None:
    _, reports, _ = one_round(scheduled(Phase(1, rate=0.3), head="fedbabu"), two_clients(lr=0.1))
    assert float(reports[0].w["body.u"]) == pytest.approx(0.6)  # 0.3 * 2


def test_weight_decay_is_added_to_the_gradient() -> None:
    # u = 1: u - lr (g + wd u), and the same for W
    _, reports, _ = one_round("fedbabu", two_clients(start=1.0, weight_decay=0.5))
    assert float(reports[0].w["body.u"]) == pytest.approx(1 - 0.1 * (slope(1.0, [2.0], 0) + 0.5), rel=1e-6)


@pytest.mark.parametrize("recipe", ["fedbabu", "etf", "etfproj", "fn+babu"])
def test_momentum_and_weight_decay_never_move_frozen_tensors(recipe: str) -> None:
    task = skewed(3, momentum=0.9, weight_decay=0.1, train_size=120)
    parsed = parse(recipe)
    first = task.net(parsed).frozen()
    server, _ = several(recipe, task, 2)
    assert first.keys() >= {"head.weight"}
    assert not first.keys() & server.w.keys()
    assert_same(rounds.global_net(server, parsed, task).frozen(), first)
    cast = rounds.cast_of(server, parsed)
    seen: list[Tree] = []
    train_client(watching(lambda batch, local: seen.append(local.net.frozen()), recipe), task, cast,
                 first_client(parsed, task, cast, 0))  # fmt: skip
    assert_same(seen[-1], first)


@pytest.mark.parametrize(("clip", "step"), [(0.5, 0.05), (5.0, 0.2)])
def test_clipping_bounds_the_norm_of_a_step(clip: float, step: float) -> None:
    # client 0: g = -2, lr = 0.1
    _, reports, _ = one_round("fedavg", two_clients(clip_norm=clip))
    assert float(reports[0].w["body.u"]) == pytest.approx(step, rel=1e-5)


def test_clipping_takes_the_norm_of_all_parameters_together() -> None:
    task = two_clients(start=1.0, clip_norm=0.01)
    first = task.first_params(parse("fedavg"))
    _, reports, _ = one_round("fedavg", task)
    assert float((reports[0].w - first).sq_norm().sqrt()) == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_clipping_comes_after_the_correction_and_before_momentum() -> None:
    class Tenfold(Piece):
        name, slot = "tenfold", "reg"

        def correct(self, g: Tree, local: Local) -> Tree:
            return 10 * g

    _, reports, _ = one_round(Recipe((FedAvg(), Tenfold())), two_clients(clip_norm=1.0))
    assert float(reports[0].w["body.u"]) == pytest.approx(0.1, rel=1e-5)  # 20 clipped to 1
    # g = -2 twice, clipped to -1 each time: buffers 1 and 1.9
    _, reports, _ = one_round("fedbabu", two_clients(clip_norm=1.0, epochs=2, momentum=0.9))
    assert float(reports[0].w["body.u"]) == pytest.approx(0.1 * 2.9, rel=1e-5)


# ---- modes


class Noisy(nn.Module):
    """h = dropout(u x), 8 features."""

    def __init__(self) -> None:
        super().__init__()
        self.u, self.drop, self.dim = nn.Parameter(torch.ones(8)), nn.Dropout(0.5), 8

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.u * x)


def test_what_a_phase_does_not_train_is_in_eval_mode() -> None:
    modes: list[tuple[bool, bool, bool]] = []

    def look(batch: Batch, local: Local) -> None:
        net = local.net
        modes.append((net.body.training, net.body.bn.training, net.head.training))

    one_round(watching(look, "fedrep"), table(4, body=Normed))
    assert modes == [(False, False, True), (True, True, False)]
    modes.clear()
    one_round(watching(look, "fedavg"), table(4, body=Normed))
    assert modes == [(True, True, True)]
    modes.clear()
    one_round(watching(look, "fedbabu"), table(4, body=Normed))
    assert modes == [(True, True, False)]


def test_a_batchnorm_whose_parameters_rest_keeps_its_statistics() -> None:
    task = table(4, body=Normed)
    first = rounds.begin(parse("fedavg"), task)
    recipe = scheduled(Phase(2, trains=lambda name: name.startswith("body.fc.")))
    server, (report,), _ = one_round(recipe, task)
    assert_same(report.stats, first.stats)
    assert torch.equal(server.w["body.bn.weight"], first.w["body.bn.weight"])
    assert (server.w["body.fc.weight"] != first.w["body.fc.weight"]).any()


def test_dropout_rests_while_only_the_head_trains() -> None:
    zeros: list[int] = []
    recipe = watching(lambda batch, local: zeros.append(int((batch.h == 0).sum())), "fedrep")
    one_round(recipe, task_of([[1.0] * 8] * 4, [0, 1, 0, 1], [[0, 1, 2, 3]], body=Noisy))
    assert zeros[0] == 0
    assert zeros[1] > 0


# ---- randomness


def dropped(ambient: int, seed: int = 0) -> list[tuple[bool, ...]]:
    """Which features dropout removed: two clients with the same single sample, two rounds."""
    torch.manual_seed(ambient)
    masks: list[tuple[bool, ...]] = []
    recipe = watching(lambda batch, local: masks.append(tuple((batch.h == 0).flatten().tolist())))
    task = task_of([[1.0] * 8, [1.0] * 8], [0, 0], [[0], [1]], body=Noisy, seed=seed)
    several(recipe, task, 2)
    return masks


def test_dropout_is_drawn_from_the_clients_own_stream() -> None:
    masks = dropped(ambient=1)
    assert masks == dropped(ambient=2)
    assert masks != dropped(ambient=1, seed=1)
    assert len(set(masks)) == 4  # two clients, two rounds


def test_the_global_generator_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    task = task_of([[1.0] * 8] * 4, [0, 1, 0, 1], [[0, 1], [2, 3]], body=Noisy)
    recipe = parse("fedavg+ft+ccvr(epochs=1)")
    engine = LocalEngine()
    server = rounds.run(recipe, task, engine, 2)
    rounds.finish(server, recipe, task, engine)
    cast = rounds.cast_of(server, recipe)
    for _ in personal_net(
        recipe, task, cast, first_client(recipe, task, cast, 0), rounds.personal_phases(recipe, task)
    ):
        pass
    assert torch.equal(torch.get_rng_state(), before)


# ---- a pure function


@pytest.mark.parametrize("text", ["scaffold+moon", "fedrep", "fedtc", "fedetf+gmv(warmup=1,space=raw)"])
def test_a_clients_round_is_a_pure_function_of_its_arguments(text: str) -> None:
    task, recipe = skewed(3, train_size=90, persist_momentum=True), parse(text)
    server, engine = several(recipe, task, 1)
    cast, client = rounds.cast_of(server, recipe), engine.store.get(0)
    before = copy.deepcopy((cast, client))
    first = train_client(recipe, task, cast, client)
    assert_same((cast, client), before)
    assert_same(train_client(recipe, task, cast, client), first)


def test_a_new_client_starts_with_the_first_personal_parameters_and_fresh_notes() -> None:
    task, recipe = two_clients(start=1.0, sampling=0.5), parse("scaffold+fedper")
    server, engine = several(recipe, task, 1)
    (trained,) = engine.store.ids()
    fresh = first_client(recipe, task, rounds.cast_of(server, recipe), 1 - trained)
    assert fresh.personal["head.weight"].tolist() == [[1.0], [-1.0]]
    assert float(fresh.kept["scaffold"]["c"]["body.u"]) == 0
    assert engine.store.get(trained).personal["head.weight"].tolist() != [[1.0], [-1.0]]


def test_only_shared_parameters_travel() -> None:
    _, reports, engine = one_round("fedper", two_clients())
    assert list(reports[0].w) == ["body.u"]
    assert list(engine.store.get(0).personal) == ["head.weight"]


def test_a_gradient_that_nobody_asks_for_is_zero() -> None:
    # the head's bias-free weight has no part in a loss on the features: correct() still sees its name
    class OnFeatures(Piece):
        name, slot = "onfeatures", "loss"

        def criterion(self, batch: Batch, local: Local) -> Tensor:
            return batch.h.sum()

    task = task_of([2.0], [0], [[0]], body=lambda: OneWeight(0.0), bias=False)
    server, _, _ = one_round(Recipe((FedAvg(), OnFeatures())), task)
    assert float(server.w["body.u"]) == pytest.approx(-0.2)
    assert torch.equal(server.w["head.weight"], task.first_params(parse("fedavg"))["head.weight"])


# ---- models of one's own


def test_personal_net_yields_the_received_model_first_and_then_every_stage() -> None:
    task, recipe = two_clients(), parse("fedavg")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    phases = [Phase(1, stage="one"), Phase(2)]
    client = first_client(recipe, task, cast, 0)
    seen = [(stage, float(net.params()["body.u"].detach()), net.training)
            for stage, net in personal_net(recipe, task, cast, client, phases)]  # fmt: skip
    assert [(stage, training) for stage, _, training in seen] == [
        ("received", False),
        ("one", False),
        ("phase 2", False),
    ]
    assert seen[0][1] == 0.0
    assert seen[1][1] == pytest.approx(0.2)
    assert seen[2][1] > 0.2


def test_a_client_without_data_has_the_received_model_only() -> None:
    task = task_of([2.0], [0], [[0], []], body=OneWeight)
    recipe = parse("fedavg")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    stages = [s for s, _ in personal_net(recipe, task, cast, first_client(recipe, task, cast, 1), [Phase(1)])]
    assert stages == ["received"]


def test_amp_computes_in_bfloat16_and_keeps_parameters_in_float32() -> None:
    plain = skewed(2, train_size=60)
    mixed = replace(plain, settings=plain.settings.model_copy(update={"amp": True}), _nets={})  # as on a GPU
    types = set()

    def look(batch: Batch, local: Local) -> None:
        types.add(batch.h.dtype)

    for task in (plain, mixed):
        _, reports, _ = one_round(watching(look), task)
        assert {v.dtype for v in reports[0].w.values()} == {torch.float32}
        assert math.isfinite(reports[0].loss)
    assert types == {torch.float32, torch.bfloat16}


def test_amp_on_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="use --device cuda"):
        skewed(2, amp=True)


class FrozenNorm(Normed):
    """A user's network that keeps its normalisation at rest while it trains."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self.bn.eval()
        return self


def test_a_network_with_a_train_of_its_own_is_asked() -> None:
    task, recipe = table(8, body=FrozenNorm), parse("fedavg")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    report, _ = train_client(recipe, task, cast, first_client(recipe, task, cast, 0))
    assert_same(report.stats, cast.stats)  # nothing moved them
    assert not torch.equal(report.w["body.fc.weight"], cast.w["body.fc.weight"])


def test_class_means_of_the_trained_model_are_computed_once_for_all_pieces(monkeypatch) -> None:
    asked = []
    features_of = Net.features_of
    monkeypatch.setattr(Net, "features_of", lambda self, *a, **k: asked.append(self) or features_of(self, *a, **k))
    one_round("gmv(warmup=1)+protoalign", skewed(2, train_size=60))
    assert len(asked) == 2  # one a client
