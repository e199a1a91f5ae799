"""FedPer: body and head train together; the head never leaves its client."""

from __future__ import annotations

import pytest
import torch
from toy import assert_same, head_step, one_round, several, skewed, slope, two_clients

from headway.base.errors import RecipeError
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.client import personal_net


def test_a_round_by_hand() -> None:
    # u = 1, W = (1, -1): u moves by the slope and is averaged; each client's W moves and stays
    server, reports, engine = one_round("fedper", two_clients(start=1.0))
    us, heads = [], []
    for xs, y in (([2.0], 0), ([1.0, 2.0], 1)):
        us.append(1 - 0.1 * slope(1.0, xs, y))
        heads.append(1 - 0.1 * head_step(1.0, 1.0, xs, y))
    assert [float(r.w["body.u"]) for r in reports] == pytest.approx(us, rel=1e-6)
    assert float(server.w["body.u"]) == pytest.approx(us[0] / 3 + 2 * us[1] / 3, rel=1e-6)
    for k in (0, 1):
        found = engine.store.get(k).personal["head.weight"].flatten().tolist()
        assert found == pytest.approx([heads[k], -heads[k]], rel=1e-6)
    assert heads[0] != heads[1]


def test_the_second_round_starts_from_the_clients_own_head() -> None:
    task = two_clients(start=1.0)
    server, _, engine = one_round("fedper", task)
    u = float(server.w["body.u"])
    a = float(engine.store.get(0).personal["head.weight"][0])
    _, reports, engine = one_round("fedper", task, server, engine)
    assert float(reports[0].w["body.u"]) == pytest.approx(u - 0.1 * slope(u, [2.0], 0, scale=a), rel=1e-5)
    expected = a - 0.1 * head_step(u, a, [2.0], 0)
    assert float(engine.store.get(0).personal["head.weight"][0]) == pytest.approx(expected, rel=1e-5)


def test_the_head_is_never_sent() -> None:
    task = skewed(3, train_size=90)
    first = task.first_params(parse("fedper"))
    server, engine = several("fedper", task, 2)
    _, reports, _ = one_round("fedper", task, server, engine)
    assert all(name.startswith("body.") for r in reports for name in r.w)
    assert all(name.startswith("body.") for name in rounds.cast_of(server, parse("fedper")).w)
    assert torch.equal(server.w["head.weight"], first["head.weight"])
    heads = [engine.store.get(k).personal["head.weight"] for k in range(3)]
    assert all(not torch.equal(h, first["head.weight"]) for h in heads)
    assert not torch.equal(heads[0], heads[1])


def test_heads_start_alike_and_rest_while_their_client_does() -> None:
    task = two_clients(start=1.0, sampling=0.5)
    server, (report,), engine = one_round("fedper", task)
    held = engine.store.get(report.client).personal
    for _ in range(5):
        server, (other,), engine = one_round("fedper", task, server, engine)
        if other.client != report.client:
            break
        held = engine.store.get(report.client).personal
    assert other.client != report.client
    assert_same(engine.store.get(report.client).personal, held)


def test_the_personal_model_is_the_global_body_under_the_own_head() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedper")
    server, engine = several("fedper", task, 2)
    assert rounds.personal_phases(recipe, task) == []
    ((stage, net),) = personal_net(recipe, task, rounds.cast_of(server, recipe), engine.store.get(1), [])
    assert stage == "received"
    assert torch.equal(net.head.weight, engine.store.get(1).personal["head.weight"])
    assert torch.equal(net.params()["body.fc1.weight"], server.w["body.fc1.weight"])


def test_with_one_client_it_is_fedavg() -> None:
    task = skewed(1, partition="iid", train_size=60)
    server, engine = several("fedper", task, 2)
    plain, _ = several("fedavg", task, 2)
    assert_same((server.w | engine.store.get(0).personal), plain.w)


@pytest.mark.parametrize("share", ["fedper", "fedrep", "fedtc"])
@pytest.mark.parametrize("head", ["babu", "etf"])
def test_a_frozen_head_leaves_nothing_personal_and_is_refused(share: str, head: str) -> None:
    with pytest.raises(RecipeError, match=head):
        rounds.begin(parse(f"{share}+{head}"), skewed(2, train_size=30))
