"""One client's work: a round as a pure function of its arguments, what stays and what is sent, and its own model."""

from __future__ import annotations

import copy

import pytest
from toy import OneWeight, assert_same, one_round, several, skewed, task_of, two_clients

from headway.core.phase import Phase
from headway.methods import recipe as parse
from headway.models.net import Net
from headway.training import rounds
from headway.training.client import first_client, personal_net, train_client

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


def test_only_shared_parameters_are_sent() -> None:
    _, reports, engine = one_round("fedper", two_clients())
    assert list(reports[0].w) == ["body.u"]
    assert list(engine.store.get(0).personal) == ["head.weight"]


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


def test_class_means_of_the_trained_model_are_computed_once_for_all_pieces(monkeypatch) -> None:
    asked = []
    features_of = Net.features_of
    monkeypatch.setattr(Net, "features_of", lambda self, *a, **k: asked.append(self) or features_of(self, *a, **k))
    one_round("gmv(warmup=1)+protoalign", skewed(2, train_size=60))
    assert len(asked) == 2  # one a client
