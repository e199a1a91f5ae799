"""FedRoD: a generic head under the balanced softmax, and a private residual on detached features."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from toy import assert_same, one_round, several, skewed, two_clients

from headway.base.tree import Tree, stream
from headway.methods import recipe as parse
from headway.methods.parts.hyper_head import HyperHead
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.training import rounds
from headway.training.client import first_client, personal_net, train_client

MASK = "fedrod(absent=mask)"


def private(name: str) -> bool:
    return name.startswith("head.private.")


def tr(text: str, task, k: int = 0, w: dict | None = None, own: dict | None = None):
    """(report, client) of one client's round, with some tensors set by hand."""
    recipe = parse(text)
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    client = first_client(recipe, task, cast, k)
    cast = replace(cast, w=cast.w | (w or {}))
    return train_client(recipe, task, cast, replace(client, personal=client.personal | (own or {})))


def rows(a: float) -> torch.Tensor:
    return torch.tensor([[a], [-a]])


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_clients_round_by_hand(epochs: int) -> None:
    # client 0 holds one sample of class 0, x = 2; floor1 makes both priors log 1 = 0: G by plain CE on (a h, -a h);
    # P = (b, -b) by CE on ((a + b) h, -(a + b) h) with a and h held
    report, client = tr("fedrod", two_clients(start=1.0, epochs=epochs))
    u, a, b = 1.0, 1.0, 1.0
    for _ in range(epochs):
        h = u * 2.0
        wrong, both = 1 / (1 + math.exp(2 * a * h)), 1 / (1 + math.exp(2 * (a + b) * h))
        u, a, b = u + 0.1 * 2 * 2.0 * a * wrong, a + 0.1 * h * wrong, b + 0.1 * h * both
    assert float(report.w["body.u"]) == pytest.approx(u, rel=1e-5)
    assert report.w["head.generic.weight"].flatten().tolist() == pytest.approx([a, -a], rel=1e-5)
    assert client.personal["head.private.weight"].flatten().tolist() == pytest.approx([b, -b], rel=1e-5)


def test_the_generic_head_feels_the_class_prior() -> None:
    # client 1 holds two samples of class 1: z + log n = (z_0 + log 1, z_1 + log 2); h = 1, 2 under (h, -h)
    report, _ = tr("fedrod", two_clients(start=1.0), k=1)
    slopes = [2 * x / (1 + math.exp(-2 * x + math.log(2))) for x in (1.0, 2.0)]  # 2 x p_0
    assert float(report.w["body.u"]) == pytest.approx(1 - 0.1 * sum(slopes) / 2, rel=1e-5)


def test_the_private_head_does_not_feel_it() -> None:
    small, large = (tr(f"fedrod(gamma={g})", two_clients(start=1.0), k=1)[1].personal for g in (0, 2))
    assert_same(small, large)


def test_masked_absent_classes_leave_the_generic_head_nothing_to_learn() -> None:
    report, client = tr(MASK, two_clients(start=1.0))
    assert float(report.w["body.u"]) == 1.0
    assert torch.equal(report.w["head.generic.weight"], rows(1.0))
    assert not torch.equal(client.personal["head.private.weight"], rows(1.0))


def test_extractor_and_generic_head_get_no_gradient_from_the_private_head() -> None:
    task = two_clients(start=1.0, epochs=3, momentum=0.9, weight_decay=0.01)
    small, large = (tr("fedrod", task, own={"head.private.weight": rows(b)})[0] for b in (0.1, -40.0))
    assert_same(small.w, large.w)


def test_the_private_head_steps_without_momentum_and_weight_decay() -> None:
    # the same features every step, since the masked softmax holds u and G: P by plain SGD whatever the optimiser
    plain = tr(MASK, two_clients(start=1.0, epochs=4))[1].personal
    b = 1.0
    for _ in range(4):
        b += 0.1 * 2.0 / (1 + math.exp(2 * (1 + b) * 2.0))
    assert float(plain["head.private.weight"][0]) == pytest.approx(b, rel=1e-5)
    assert_same(tr(MASK, two_clients(start=1.0, epochs=4, momentum=0.9))[1].personal, plain)
    decayed = tr(MASK, two_clients(start=1.0, epochs=4, weight_decay=0.5))
    assert float(decayed[0].w["head.generic.weight"][0]) < 1  # the generic head is decayed
    alone = tr(MASK, two_clients(start=1.0, weight_decay=0.5))[1].personal  # one step: h and G not yet decayed
    assert_same(alone, tr(MASK, two_clients(start=1.0))[1].personal)


def test_the_private_head_starts_as_a_copy_of_the_generic_one_and_stays_home() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedrod")
    first = task.first_params(recipe)
    assert torch.equal(first["head.private.weight"], first["head.generic.weight"])
    server, reports, engine = one_round(recipe, task)
    assert not any(private(name) for name in reports[0].w)
    assert set(engine.store.get(0).personal) == {"head.private.weight", "head.private.bias"}
    held = engine.store.get(0).personal
    assert not torch.equal(held["head.private.weight"], first["head.private.weight"])
    assert_same(server.w.only(private), first.only(private))


def test_generic_prediction_is_g_and_personal_prediction_is_g_plus_p() -> None:
    task, recipe = skewed(3, train_size=90), parse("fedrod")
    server, engine = several(recipe, task, 2)
    x = task.dataset.x_test[:7]
    net = rounds.global_net(server, recipe, task)
    h, w = net.features(x), server.w
    generic = h @ w["head.generic.weight"].T + w["head.generic.bias"]
    assert torch.allclose(net(x), generic, atol=1e-6)  # no prior at test
    client = engine.store.get(1)
    assert rounds.personal_phases(recipe, task) == []
    ((_, own),) = personal_net(recipe, task, rounds.cast_of(server, recipe), client, [])
    p = client.personal
    expected = generic + h @ p["head.private.weight"].T + p["head.private.bias"]
    assert torch.allclose(own.personal(x), expected, atol=1e-5)
    assert torch.allclose(own(x), generic, atol=1e-6)


# ---- the private head made by a shared network
HYPER = "fedrod(private=hyper)"


def test_the_hyper_residual_by_hand() -> None:
    # C = 2, d = 1: inner [[1, -2]], outer [[3], [5]], frequency (3/4, 1/4): relu(3/4 - 1/2) = 1/4; rows (3/4, 5/4)
    head = HyperHead(1, 2, stream("h"))
    with torch.no_grad():
        head.inner.copy_(torch.tensor([[1.0, -2.0]]))
        head.outer.copy_(torch.tensor([[3.0], [5.0]]))
        head.frequency.copy_(torch.tensor([0.75, 0.25]))
    h = torch.tensor([[2.0]])
    assert torch.allclose(head.private(h), torch.tensor([[1.5, 2.5]]))
    assert torch.allclose(head.personal(h), head.generic(h) + torch.tensor([[1.5, 2.5]]))
    head.frequency.copy_(torch.tensor([0.0, 1.0]))
    assert torch.equal(head.private(h), torch.zeros(1, 2))


def test_the_hyper_network_sees_each_clients_class_frequencies() -> None:
    recipe, task = parse(HYPER), two_clients()
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    for k, frequency in ((0, [1.0, 0.0]), (1, [0.0, 1.0])):
        ((_, net),) = personal_net(recipe, task, cast, first_client(recipe, task, cast, k), [])
        assert net.head.frequency.tolist() == frequency
    counts = torch.tensor([3, 1])
    assert recipe.equip({}, counts)["head.frequency"].tolist() == [0.75, 0.25]
    assert recipe.equip({}, None) == Tree()  # the global model has no client


def test_the_hyper_network_is_shared_and_averaged() -> None:
    recipe, task = parse(HYPER), skewed(3, train_size=90)
    server, reports, engine = one_round(recipe, task)
    p = [r.n / 90 for r in reports]
    for name in ("head.inner", "head.outer"):
        mean = sum(q * r.w[name] for q, r in zip(p, reports, strict=True))
        assert torch.allclose(server.w[name], mean, atol=1e-6)
        assert not torch.equal(server.w[name], task.first_params(recipe)[name])
    assert engine.store.ids() == []  # nobody keeps anything


def test_extractor_and_generic_head_get_no_gradient_from_the_hyper_network() -> None:
    task = skewed(2, train_size=60, momentum=0.9)
    outer = parse(HYPER)
    shape = task.first_params(outer)["head.outer"].shape
    small, large = (tr(HYPER, task, w={"head.outer": torch.full(shape, v)})[0].w for v in (0.0, 3.0))
    moved = {name for name in small if not torch.equal(small[name], large[name])}
    assert moved == {"head.inner", "head.outer"}


def test_hyper_clients_are_evaluated_with_their_own_residual_on_receiving() -> None:
    recipe, task = parse(HYPER), skewed(4, train_size=400, lr=0.3)
    server, engine = several(recipe, task, 3)
    net = rounds.global_net(server, recipe, task)
    score = global_score(net, engine, task)
    own = received_score(server, recipe, task, engine, net, score, personal_ids(task))
    cast = rounds.cast_of(server, recipe)
    for k in own.n:
        ((_, mine),) = personal_net(recipe, task, cast, engine.client(recipe, task, cast, k), [])
        x, y = task.test(k)
        assert own.correct[k] == int((mine.personal(x).argmax(1) == y).sum())


def test_hyper_clients_are_personal_without_further_training() -> None:
    # as with a private head of their own: the personal prediction is G + P, nothing is trained for it
    assert rounds.personal_phases(parse(HYPER), skewed(2, train_size=30)) == []
