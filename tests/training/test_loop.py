"""The inner loop: batches, steps, momentum, clipping, decay, modes and randomness."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from phases import at_rate, scheduled, slower_head, table
from torch import Tensor, nn
from toy import Normed, OneWeight, assert_same, fixed, one_round, several, skewed, slope, task_of, two_clients, watching

from headway.base.errors import ConfigError
from headway.base.tree import Tree
from headway.base.wording import for_commands
from headway.core.local import Batch, Local
from headway.core.phase import Phase
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.methods.fedavg import FedAvg
from headway.training import rounds
from headway.training.client import first_client, personal_net, train_client

# ---- batches


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


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fedper", "local", "ditto", "perfedavg"])
def test_clients_smaller_than_a_batch_train(n: int, base: str) -> None:
    task = task_of(
        [2.0] * n, [0] * n, [list(range(n))], body=lambda: OneWeight(0.5), first=fixed([[1.0], [-1.0]]), batch_size=64
    )
    _, reports, engine = one_round(base, task)
    assert reports[0].steps == 1
    client = engine.store.get(0)
    u = reports[0].w.get("body.u", client.personal.get("body.u") if client else None)
    assert float(u) > 0.5


def test_the_last_incomplete_batch_trains() -> None:
    _, reports, _ = one_round("fedavg", skewed(1, partition="iid", train_size=70, batch_size=32))
    assert reports[0].steps == 3


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
    slow = one_round(scheduled(Phase(1, step=slower_head(0.25))), task)[1][0].w
    first = task.first_params(parse("fedavg"))
    assert torch.equal(slow["body.u"], plain["body.u"])
    assert torch.allclose(slow["head.weight"] - first["head.weight"], (plain["head.weight"] - first["head.weight"]) / 4)


def test_a_phase_may_have_a_rate_of_its_own() -> None:
    _, reports, _ = one_round(scheduled(Phase(1, step=at_rate(0.3)), head="fedbabu"), two_clients(lr=0.1))
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


@pytest.mark.parametrize("head", ["babu", "etf", "sphere", "etfproj", "proto"])
@pytest.mark.parametrize("base", ["fedavg", "scaffold", "fednova", "feddyn", "fedadam", "perfedavg"])
def test_weight_decay_and_momentum_do_not_move_a_frozen_classifier(head: str, base: str) -> None:
    task = skewed(2, train_size=60, momentum=0.9, weight_decay=1.0, epochs=2, lr=0.01)
    seen = []

    class Looking(LocalEngine):
        def train(self, recipe, task, cast, ids):
            original = task.working_net
            object.__setattr__(task, "working_net", lambda r: seen.append(original(r)) or seen[-1])
            try:
                return super().train(recipe, task, cast, ids)
            finally:
                object.__delattr__(task, "working_net")

    recipe = parse(f"{base}+{head}")
    one_round(recipe, task, engine=Looking())
    wanted = rounds.global_net(rounds.begin(recipe, task), recipe, task).head.weight
    assert len(seen) == 2
    assert all(torch.equal(net.head.weight, wanted) for net in seen)


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


# ---- bfloat16


def test_amp_computes_in_bfloat16_and_keeps_parameters_in_float32() -> None:
    plain = skewed(2, train_size=60)
    mixed = replace(plain, settings=plain.settings.model_copy(update={"amp": True}))  # as on a GPU
    types = set()

    def look(batch: Batch, local: Local) -> None:
        types.add(batch.h.dtype)

    for task in (plain, mixed):
        _, reports, _ = one_round(watching(look), task)
        assert {v.dtype for v in reports[0].w.values()} == {torch.float32}
        assert math.isfinite(reports[0].loss)
    assert types == {torch.float32, torch.bfloat16}


def test_amp_on_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="use device='cuda', or"):
        skewed(2, amp=True)
    with for_commands(), pytest.raises(ConfigError, match="use --device cuda, or"):
        skewed(2, amp=True)
