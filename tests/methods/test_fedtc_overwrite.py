"""FedTC's ablation: Algorithm 1, line 13 at its word, the own classifier overwritten each round."""

from __future__ import annotations

import pytest
import torch
from toy import head_step, one_round, several, skewed, slope, two_clients

from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.client import personal_net

OVERWRITE = "fedtc(overwrite=true,head_lr=0.5)"


def test_two_rounds_by_hand() -> None:
    # each round phi_k starts at phi: u under phi held constant, a from phi at half the rate, both averaged
    server, _ = several(OVERWRITE, two_clients(start=1.0), 2)
    u, phi = 1.0, 1.0
    for _ in range(2):
        us, heads = [], []
        for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
            us.append(u - 0.1 * slope(u, xs, y, scale=phi))
            heads.append(phi - 0.05 * head_step(u, phi, xs, y))
        u, phi = us[0] / 3 + 2 * us[1] / 3, heads[0] / 3 + 2 * heads[1] / 3
    assert float(server.w["body.u"]) == pytest.approx(u, rel=1e-4)
    for which in ("received", "own"):
        assert server.w[f"head.{which}.weight"].flatten().tolist() == pytest.approx([phi, -phi], rel=1e-4)


def test_received_and_own_are_one_after_every_round() -> None:
    server, _ = several(OVERWRITE, skewed(3, train_size=90, momentum=0.9), 3)
    assert torch.equal(server.w["head.received.weight"], server.w["head.own.weight"])
    assert torch.equal(server.w["head.received.bias"], server.w["head.own.bias"])


def test_clients_keep_nothing() -> None:
    _, _, engine = one_round(OVERWRITE, skewed(3, train_size=90))
    assert engine.store.ids() == []


def test_it_differs_from_the_retained_classifier_from_the_second_round_on() -> None:
    task = skewed(3, train_size=90)
    (kept, _), (over, _) = several("fedtc(head_lr=0.5)", task, 1), several(OVERWRITE, task, 1)
    assert torch.equal(kept.w["head.received.weight"], over.w["head.received.weight"])
    (kept, _), (over, _) = several("fedtc(head_lr=0.5)", task, 2), several(OVERWRITE, task, 2)
    assert not torch.equal(kept.w["head.received.weight"], over.w["head.received.weight"])


def test_the_personal_model_on_receiving_is_the_global_one() -> None:
    task, recipe = skewed(3, train_size=90), parse(OVERWRITE)
    server, engine = several(recipe, task, 2)
    cast = rounds.cast_of(server, recipe)
    x = task.dataset.x_test
    _, net = next(personal_net(recipe, task, cast, engine.client(recipe, task, cast, 0), []))
    assert torch.equal(net.personal(x), rounds.global_net(server, recipe, task)(x))


def test_the_evaluated_personal_model_is_the_global_one() -> None:
    # FedTC evaluates right after receiving, before training; also in the ablation nothing is trained for it
    assert rounds.personal_phases(parse(OVERWRITE), skewed(2, train_size=30)) == []
