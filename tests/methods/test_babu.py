"""FedBABU: the classifier rests at its common random start."""

from __future__ import annotations

import pytest
import torch
from toy import assert_same, one_round, several, skewed, slope, two_clients

from headway.methods import recipe as parse
from headway.training import rounds


def test_a_round_by_hand() -> None:
    # two steps with W = (1, -1) throughout
    server, reports, _ = one_round("fedbabu", two_clients(epochs=2))
    us = []
    for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
        u = -0.1 * slope(0.0, xs, y)
        us.append(u - 0.1 * slope(u, xs, y))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-6)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-5)


def test_the_frozen_classifier_is_fedavgs_first_one_bias_included() -> None:
    task = skewed(3, train_size=60)
    frozen, plain = task.net(parse("fedbabu")), task.net(parse("fedavg"))
    assert torch.equal(frozen.head.weight, plain.head.weight)
    assert torch.equal(frozen.head.bias, plain.head.bias)
    assert_same(frozen.params(), plain.params().only(lambda name: name.startswith("body.")))


def test_the_classifier_never_moves_and_is_never_sent() -> None:
    task = skewed(3, train_size=90, momentum=0.9, weight_decay=0.1)
    first = task.net(parse("fedbabu")).frozen()
    server, reports, engine = one_round("fedbabu", task)
    server, reports, _ = one_round("fedbabu", task, server, engine)
    assert {"head.weight", "head.bias"} <= first.keys()
    assert all(name.startswith("body.") for name in (*reports[0].w, *server.w))
    assert_same(rounds.global_net(server, parse("fedbabu"), task).frozen(), first)


def test_the_body_moves_as_under_fedavg_while_the_classifier_has_not() -> None:
    # one step from the same start: the same gradient of the body
    plain, frozen = (several(r, two_clients(start=0.5), 1)[0].w["body.u"] for r in ("fedavg", "fedbabu"))
    assert torch.equal(plain, frozen)
    plain, frozen = (several(r, two_clients(start=0.5, epochs=2), 1)[0].w["body.u"] for r in ("fedavg", "fedbabu"))
    assert not torch.equal(plain, frozen)
