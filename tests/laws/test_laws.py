"""The laws: what every piece and every engine keeps. New pieces are picked up from the registry by themselves."""

from __future__ import annotations

import copy
import itertools
import json
import random
from dataclasses import fields, replace

import pytest
import torch
import toy
from torch import nn

import headway
from headway import models, rounds
from headway.checkpoint import Checkpoints
from headway.client import first_client, train_client
from headway.engine import ClientStore, DirectoryStore, LocalEngine, PoolEngine
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.state import Client, Report
from headway.tree import stream
from headway.values import flatten, to_bytes, unflatten

EARLY = {  # as small as they can be seen at work; where a piece needs company, in company
    "gmv": "gmv(warmup=1)",
    "algorithm2": "fedetf+algorithm2(turns=1)",
    "dotreg": "sphere+dotreg",
}
PIECES = [EARLY.get(p.name, p.name) for p in REGISTRY.pieces]
SUMS = [
    "scaffold+fn",
    "fedavg+etf+gmv(warmup=1)",
    "moon+ccvr",
    "fedetf+prox+moon",
    "scaffold+fedrep",
    "fedavgm+fedtc",
    "scaffold+fn+balanced+prox+moon+gmv(warmup=1,space=raw)+ft+ccvr",
    "fedexp+fedrod(private=hyper)",
    "feddyn+proto+ntd+protoalign",
    "fednova+fedtc(overwrite=true)",
    "perfedavg(order=hf)+fn+one_step",
    "fedadam+cosine+spread+ditto",
]
RECIPES = PIECES + SUMS
NEUTRAL = [p for p in REGISTRY.pieces if p.neutral is not None]


class Troublesome(nn.Module):
    """Running statistics and dropout."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 12)
        )  # fmt: skip
        self.dim = 12

    def forward(self, x):
        return self.layers(x)


def troublesome():
    with models.seeded(stream(0, "init")):
        return Troublesome(), {"bias": True, "init": None}


@pytest.fixture(scope="module")
def task():
    """Six label-skewed clients, three a round, with every ingredient that has spoilt reproducibility before."""
    values = {"momentum": 0.9, "persist_momentum": True, "weight_decay": 1e-3, "lr": 0.05, "augment": "flip"}
    return replace(toy.skewed(6, sampling=0.5, train_size=300, **values), make_body=troublesome, _nets={})


def played(recipe, task, count=3, server=None, engine=None):
    engine = engine or LocalEngine()
    task = task.for_recipe(recipe)
    return rounds.run(recipe, task, engine, count, server), engine


@pytest.mark.parametrize("cls", NEUTRAL, ids=lambda c: c.name)
def test_neutral_setting_equals_fedavg_bit_for_bit(cls, task):
    piece = cls(**cls.neutral)
    settings = ",".join(f"{f.name}={getattr(piece, f.name)}" for f in fields(piece) if f.name in cls.neutral)
    neutral, _ = played(parse(f"{cls.name}({settings})"), task)
    plain, _ = played(parse("fedavg"), task)
    toy.assert_same(neutral.w, plain.w)
    toy.assert_same(neutral.stats, plain.stats)


@pytest.mark.parametrize("text", RECIPES)
def test_resumed_run_equals_straight_run(text, task, tmp_path):
    recipe = parse(text)
    straight = toy.state_of(*played(recipe, task, 3))
    server, engine = played(recipe, task, 2)
    Checkpoints(tmp_path, {"recipe": text}).save(server, engine.store, {"line": 2})
    found, damaged = Checkpoints(tmp_path, {"recipe": text}).load(torch.device("cpu"))
    assert damaged == []
    assert found.extra == {"line": 2}
    store = ClientStore()
    found.fill(store)
    toy.assert_same(toy.state_of(*played(recipe, task, 3, found.server, LocalEngine(store))), straight)


class TravellingEngine(LocalEngine):
    """Clients in a random order, and every value that travels goes through bytes, as on another machine."""

    def __init__(self, seed):
        super().__init__()
        self.order = random.Random(seed)

    def train(self, recipe, task, cast, ids):
        there = type(cast)(**sent_as_bytes(cast))
        ids = self.order.sample(list(ids), len(ids))
        pairs = [train_client(recipe, task, there, self.client(recipe, task, there, k)) for k in ids]
        self._pending = [Client(**sent_as_bytes(client)) for _, client in pairs]
        return [Report(**sent_as_bytes(report)) for report, _ in pairs]


def sent_as_bytes(value):
    tensors = {}
    skeleton = json.loads(json.dumps(flatten(value, tensors)))
    return unflatten(skeleton, {k: v.clone() for k, v in tensors.items()})


@pytest.mark.parametrize("text", RECIPES)
def test_engines_agree_bit_for_bit(text, task):
    recipe = parse(text)
    at_home = toy.state_of(*played(recipe, task))
    toy.assert_same(toy.state_of(*played(recipe, task, engine=TravellingEngine(7))), at_home)


@pytest.mark.parametrize("text", RECIPES)
def test_store_on_disk_equals_store_in_memory(text, task, tmp_path):
    recipe = parse(text)
    in_memory = toy.state_of(*played(recipe, task))
    on_disk = toy.state_of(*played(recipe, task, engine=LocalEngine(DirectoryStore(tmp_path))))
    toy.assert_same(on_disk, in_memory)


@pytest.mark.parametrize("text", SUMS)
def test_order_of_the_pieces_carries_no_meaning(text, task):
    recipe = parse(text)
    expected = toy.state_of(*played(recipe, task, 2))
    names = text.split("+")
    for shuffled in itertools.islice(itertools.permutations(names), 1, 4):
        other = parse("+".join(shuffled))
        assert str(other) == str(recipe)
        toy.assert_same(toy.state_of(*played(other, task, 2)), expected)


@pytest.mark.parametrize("text", RECIPES)
def test_hooks_leave_their_arguments_unchanged(text, task):
    recipe = parse(text)
    server, engine = played(recipe, task, 2)
    task = task.for_recipe(recipe)
    cast = rounds.cast_of(server, recipe)
    clients = [engine.client(recipe, task, cast, k) for k in task.sampling(2)]  # clients of the third round
    before = copy.deepcopy((server, cast, clients))
    pairs = [train_client(recipe, task, cast, client) for client in clients]
    reports = [report for report, _ in pairs]
    reports_before = copy.deepcopy(reports)
    with torch.no_grad():
        p = task.weights(reports)
        kept = recipe.absorb(server.kept, reports, len(task.data))
        w, _ = recipe.server_step(cast.w, recipe.aggregate(cast.w, reports, p), kept)
        recipe.post(w, reports)
    toy.assert_same((server, cast, clients), before)
    toy.assert_same(reports, reports_before)


@pytest.mark.parametrize("text", RECIPES)
def test_values_are_stored_without_pickle(text, task):
    recipe = parse(text)
    server, engine = played(recipe, task, 2)
    for value in [server, *(engine.store.get(k) for k in engine.store.ids())]:
        assert len(to_bytes(value)) > 0  # raises for anything but tensors, trees, numbers, strings and dicts of them
        toy.assert_same(type(value)(**sent_as_bytes(value)), value)


@pytest.mark.parametrize("text", RECIPES)
def test_personal_and_frozen_tensors_stay_home(text, task):
    recipe = parse(text)
    server = rounds.begin(recipe, task)
    cast = rounds.cast_of(server, recipe)
    report, client = train_client(recipe, task, cast, first_client(recipe, task, cast, 0))
    net = task.net(recipe)
    assert not set(report.w) & set(client.personal)
    assert not set(report.w) & set(net.frozen())
    assert set(report.w) | set(report.stats) | set(client.personal) == set(net.params()) | set(net.stats())
    assert set(cast.w) == set(report.w)


@pytest.mark.parametrize("text", RECIPES)
def test_frozen_tensors_do_not_move(text, task):
    """Momentum and weight decay are on; a frozen tensor must not feel them."""
    recipe = parse(text)
    trained = []

    class Watching(LocalEngine):
        def train(self, recipe, task, cast, ids):
            original = task.working_net

            def remembering(r):
                trained.append(original(r))
                return trained[-1]

            object.__setattr__(task, "working_net", remembering)
            try:
                return super().train(recipe, task, cast, ids)
            finally:
                object.__delattr__(task, "working_net")

    server, _ = played(recipe, task, 2, engine=Watching())
    first = task.net(recipe).frozen()
    moved_by_the_server = recipe.equip(recipe.broadcast(server.kept), task.data[0][1][:4])
    still = first.only(lambda name: name not in moved_by_the_server)
    assert trained
    for net in trained:
        toy.assert_same(net.frozen().only(lambda name: name in still), still)


@pytest.mark.parametrize("text", RECIPES)
def test_recipe_does_not_change_the_first_body(text):
    one, other = (toy.skewed(6, sampling=0.5, train_size=300) for _ in range(2))
    mine = one.first_params(parse(text)).only(lambda n: n.startswith("body."))
    plain = other.first_params(parse("fedavg")).only(lambda n: n.startswith("body."))
    toy.assert_same(mine, plain)


@pytest.mark.parametrize("text", ["fedetf+gmv(warmup=1,space=raw)", "scaffold+fedrep", "perfedavg", "ditto", "fedtc"])
def test_runs_of_two_recipes_share_partition_sampling_and_clients(text, tmp_path):
    given = {"data": "digits", "train_size": 200, "clients": 6, "sampling": 0.5, "rounds": 3, "model": "mlp_small"}
    for recipe in ("fedavg", text):
        headway.run(recipe, out=tmp_path / recipe, **given)
    for name in ("partition.json", "sampling.json"):
        assert (tmp_path / text / name).read_bytes() == (tmp_path / "fedavg" / name).read_bytes()


@pytest.mark.parametrize("text", RECIPES)
def test_workers_agree_bit_for_bit(text, task):
    recipe = parse(text)
    here = task.for_recipe(recipe)
    engine = PoolEngine(recipe, here, 2)
    try:
        side_by_side = toy.state_of(*played(recipe, task, 2, engine=engine))
    finally:
        engine.close()
    toy.assert_same(side_by_side, toy.state_of(*played(recipe, task, 2)))
