"""FedTC: the client's own classifier beside the received one, which teaches the extractor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toy import (
    OneWeight,
    assert_same,
    fixed,
    head_step,
    one_round,
    several,
    skewed,
    slope,
    task_of,
    two_clients,
    watching,
)

from headway.base.tree import Tree
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.client import first_client, personal_net, train_client

HALF = "fedtc(head_lr=0.5)"


def test_a_round_by_hand() -> None:
    # two steps: (6) moves u under the received phi = 1 held constant, (5) moves the own a at half the rate on h
    server, reports, engine = one_round(HALF, two_clients(start=1.0, epochs=2))
    us, heads = [], []
    for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
        u, a = 1.0, 1.0
        for _ in range(2):
            u, a = u - 0.1 * slope(u, xs, y), a - 0.05 * head_step(u, a, xs, y)
        us.append(u)
        heads.append(a)
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-5)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-5)
    for k in (0, 1):
        own = engine.store.get(k).personal["head.own.weight"].flatten().tolist()
        assert own == pytest.approx([heads[k], -heads[k]], rel=1e-5)
    phi = server.w["head.received.weight"].flatten().tolist()
    mean = heads[0] / 3 + 2 * heads[1] / 3  # phi = sum p_k phi_k
    assert phi == pytest.approx([mean, -mean], rel=1e-5)


def test_the_second_round_trains_under_the_mean_and_from_the_own() -> None:
    task = two_clients(start=1.0)
    server, _, engine = one_round(HALF, task)
    u, phi = float(server.w["body.u"]), float(server.w["head.received.weight"][0])
    a = float(engine.store.get(0).personal["head.own.weight"][0])
    assert abs(a - phi) > 1e-4
    _, reports, engine = one_round(HALF, task, server, engine)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.1 * slope(u, [2.0], 0, scale=phi), rel=1e-5)
    expected = a - 0.05 * head_step(u, a, [2.0], 0)
    assert float(engine.store.get(0).personal["head.own.weight"][0]) == pytest.approx(expected, rel=1e-5)


def trained_with_own(value: float):
    """One client's round from an own classifier of this size, momentum on."""
    task, recipe = two_clients(start=1.0, epochs=3, momentum=0.9, weight_decay=0.01), parse(HALF)
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    client = first_client(recipe, task, cast, 0)
    own = Tree({"head.own.weight": torch.tensor([[value], [-value]])})
    return train_client(recipe, task, cast, replace(client, personal=own))


def test_the_extractor_gets_no_gradient_from_the_own_classifier() -> None:
    small, large = trained_with_own(0.1)[0], trained_with_own(-50.0)[0]
    assert torch.equal(small.w["body.u"], large.w["body.u"])
    assert not torch.equal(small.w["head.received.weight"], large.w["head.received.weight"])  # the uploaded phi_k


def test_the_own_classifier_gets_no_gradient_from_the_received_one() -> None:
    # one step: phi_k moves by its own loss alone, whatever phi is
    def own_after(phi: float) -> torch.Tensor:
        task, recipe = two_clients(start=1.0), parse(HALF)
        cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
        w = cast.w | {"head.received.weight": torch.tensor([[phi], [-phi]])}
        return train_client(recipe, task, replace(cast, w=w), first_client(recipe, task, cast, 0))[1].personal[
            "head.own.weight"
        ]

    assert torch.equal(own_after(1.0), own_after(-3.0))


def test_the_received_classifier_is_unchanged_during_the_round() -> None:
    seen: list[torch.Tensor] = []
    recipe = watching(lambda batch, local: seen.append(local.net.head.received.weight.detach().clone()), HALF)
    task = skewed(1, partition="iid", train_size=60, epochs=3, momentum=0.9, weight_decay=0.1, batch_size=20)
    one_round(recipe, task)
    assert len(seen) == 9
    assert all(torch.equal(w, seen[0]) for w in seen)


def test_the_own_classifier_goes_up_in_the_place_of_the_received_one() -> None:
    _, reports, engine = one_round("fedtc", skewed(3, train_size=90))
    for r in reports:
        own = engine.store.get(r.client).personal
        assert not any(name.startswith("head.own.") for name in r.w)
        assert torch.equal(r.w["head.received.weight"], own["head.own.weight"])
        assert torch.equal(r.w["head.received.bias"], own["head.own.bias"])


def test_the_own_classifier_is_retained_and_never_overwritten() -> None:
    task = skewed(3, train_size=90)
    server, _, engine = one_round(HALF, task)
    held = {k: engine.store.get(k).personal for k in range(3)}
    starts: dict[int, Tree] = {}

    def look(batch, local) -> None:
        k = next(k for k in range(3) if task.data[k][0].shape == local.x.shape and (task.data[k][0] == local.x).all())
        starts.setdefault(k, local.net.params().copy().only(lambda name: name.startswith("head.own.")))

    one_round(watching(look, HALF), task, server, engine)
    assert_same(starts, held)
    assert not torch.equal(held[0]["head.own.weight"], server.w["head.received.weight"])


@pytest.mark.parametrize(("text", "factor"), [("fedtc", 0.01), ("fedtc(head_lr=1)", 1.0)])
def test_the_classifier_has_its_own_learning_rate(text: str, factor: float) -> None:
    _, _, engine = one_round(text, two_clients(start=1.0))
    moved = float(engine.store.get(0).personal["head.own.weight"][0]) - 1
    assert moved == pytest.approx(-0.1 * factor * head_step(1.0, 1.0, [2.0], 0), rel=2e-2)


def test_both_classifiers_start_alike() -> None:
    w = skewed(2, train_size=30).first_params(parse("fedtc"))
    assert torch.equal(w["head.own.weight"], w["head.received.weight"])


def test_the_personal_model_predicts_by_the_own_classifier_right_after_receiving() -> None:
    task = task_of(
        [2.0, 1.0], [0, 1], [[0], [1]], body=lambda: OneWeight(1.0), first=fixed([[1.0], [-1.0]]), bias=False
    )
    recipe = parse("fedtc(head_lr=1)")
    server, engine = several(recipe, task, 3)
    assert rounds.personal_phases(recipe, task) == []
    ((_, net),) = personal_net(recipe, task, rounds.cast_of(server, recipe), engine.store.get(0), [])
    x = torch.tensor([[2.0]])
    h = float(server.w["body.u"]) * 2
    own, phi = engine.store.get(0).personal["head.own.weight"], server.w["head.received.weight"]
    assert torch.allclose(net.personal(x), h * own.T)
    assert torch.allclose(net(x), h * phi.T)  # the global prediction
    assert not torch.allclose(own, phi)


@pytest.mark.parametrize("loss", ["criterion", "ce"])
def test_finetuning_trains_the_classifier_that_predicts(loss: str) -> None:
    task, recipe = two_clients(start=1.0), parse(f"fedtc+finetune(loss={loss},lr=0.1)")
    server, engine = several(recipe, task, 1)
    client = engine.store.get(0)
    *_, (_, net) = personal_net(
        recipe, task, rounds.cast_of(server, recipe), client, rounds.personal_phases(recipe, task)
    )
    assert not torch.equal(net.head.own.weight, client.personal["head.own.weight"])
