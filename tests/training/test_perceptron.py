"""Clients of a perceptron in native code: what they give one by one, for any number of threads and workers."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import headway
from headway.analysis.laws import difference
from headway.data import Dataset
from headway.engines import LocalEngine, PoolEngine
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.models.native.build import compiler
from headway.training import cohort, defaults, rounds
from headway.training.cohort import at_once, cohorts, in_calls, native_perceptron
from headway.training.perceptron import linear_layers
from headway.training.settings import settings
from headway.training.task import build

pytestmark = pytest.mark.skipif(compiler() is None, reason="native code is built by a C++ compiler")
NATIVE = ["fedavg", "fedavgm", "fedexp", "fedadam", "fedbabu", "fedavg+etf", "fedper", "lgfedavg", "fedavg+ft"]
OTHERS = [
    "scaffold",
    "fedprox(mu=0.1)",
    "fedfn",
    "fedetf",
    "moon",
    "fedrep",
    "fedtc",
    "ditto",
    "fednova",
    "centralized",
]


def task_of(native=True, **more):
    s = {"data": "digits", "model": "mlp_small", "clients": 12, "partition": "dir(0.3)", "batch_size": 10, "epochs": 2}
    made = build(settings(s | {"train_size": 300, "weight_decay": 1e-3} | more))
    return replace(made, at_once=at_once(made)) if native else made


@pytest.mark.parametrize("text", NATIVE)
def test_clients_give_what_they_give_one_by_one(text):
    recipe, states = parse(text), []
    assert native_perceptron(recipe, task_of().for_recipe(recipe))
    for native in (True, False):
        engine, task = LocalEngine(), task_of(native)
        server = rounds.run(recipe, task, engine, 3)
        cast = rounds.cast_of(rounds.predicting(server, recipe), recipe)
        phases = rounds.personal_phases(recipe, task)
        own = list(engine.personal(recipe, task, cast, task.everyone(), phases, keep=False))
        states.append((server, {k: engine.store.get(k) for k in engine.store.ids()}, own))
    (one, clients, mine), (other, alone, theirs) = states
    for key, v in one.w.items():
        torch.testing.assert_close(v, other.w[key], rtol=1e-3, atol=2e-5)
    assert clients.keys() == alone.keys()
    assert all(cohort.alike(clients[k].personal, alone[k].personal) for k in clients)
    assert [r.correct.keys() for r in mine] == [r.correct.keys() for r in theirs]
    assert sum(abs(a.last - b.last) for a, b in zip(mine, theirs, strict=True)) <= 2  # of 359 answers


@pytest.mark.parametrize("text", OTHERS)
def test_recipes_with_a_say_in_local_training_are_left_to_torch(text):
    recipe = parse(text)
    assert native_perceptron(recipe, task_of().for_recipe(recipe)) is None


def test_how_many_named_recipes_run_in_native_code():
    task = task_of()
    names = [name for name in REGISTRY.names() if name not in ("dotreg", "algorithm2", "alg2")]
    found = [name for name in names if native_perceptron(r := parse(name), task.for_recipe(r))]
    assert {"fedavg", "fedper", "local", "fedadam", "babu", "ccvr", "ft"} <= set(found)
    assert len(found) >= 25


@pytest.mark.parametrize("text", ["fedavg", "fedper", "fedbabu"])
def test_no_bit_depends_on_threads_or_workers(text):
    task, recipe = task_of(clients=40, rounds=2), parse(text)
    task = replace(task, at_once=7)
    assert len(cohorts(recipe, task, task.everyone())) >= 6
    engines = [LocalEngine(), LocalEngine(threads=3), PoolEngine(recipe, task, 2)]
    found = []
    for engine in engines:
        with closing(engine):
            server = rounds.run(recipe, task, engine, 2)
            cast = rounds.cast_of(rounds.predicting(server, recipe), recipe)
            phases = rounds.personal_phases(recipe, task)
            own = list(engine.personal(recipe, task, cast, task.everyone(), phases, keep=bool(not phases)))
            found.append((server, {k: engine.store.get(k) for k in engine.store.ids()}, own))
    for other in found[1:]:
        assert difference(found[0], other) is None


def test_a_round_is_cut_into_units_by_its_work_and_into_calls_by_its_samples(monkeypatch):
    task, recipe = task_of(clients=20, train_size=1000, epochs=1), parse("fedavg")
    assert len(cohorts(recipe, task, task.everyone())) == 1
    monkeypatch.setattr(cohort, "WORTH_A_CALL", 6 * 4810 * 1000 / 4)  # 64 x 64 + 64 + 64 x 10 + 10 numbers
    units = cohorts(recipe, task, task.everyone())
    assert [len(unit) for unit in units] == [5, 5, 5, 5]
    assert sorted(k for unit in units for k in unit) == task.everyone()
    monkeypatch.setattr(cohort, "MOST_NUMBERS", 64 * sum(task.data.size(k) for k in (*units[0], *units[1])))
    calls = list(in_calls(task, units))
    assert [unit for call in calls for unit in call] == units
    assert len(calls[0]) == 2


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ([nn.Flatten(), nn.Linear(4, 3), nn.ReLU()], ("body.1",)),
        ([nn.Linear(4, 3), nn.ReLU(), nn.Identity(), nn.Linear(3, 2), nn.ReLU(True)], ("body.0", "body.3")),
        ([nn.Flatten()], ()),  # a linear model
        ([nn.Linear(4, 3)], None),  # no ReLU before the classifier
        ([nn.Linear(4, 3), nn.Tanh()], None),
        ([nn.Linear(4, 3), nn.ReLU(), nn.Dropout()], None),
        ([nn.Linear(4, 3), nn.ReLU(), nn.ReLU()], None),
        ([nn.ReLU(), nn.Linear(4, 3), nn.ReLU()], None),
        ([nn.Flatten(0), nn.Linear(4, 3), nn.ReLU()], None),
        ([nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()], None),
    ],
)
def test_which_bodies_are_perceptrons(layers, names):
    assert linear_layers(nn.Sequential(*layers)) == names


def test_a_layer_that_runs_twice_is_none():
    layer = nn.Linear(4, 4)
    assert linear_layers(nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU())) is None


@pytest.mark.parametrize(
    "more", [{"clip_norm": 1.0}, {"persist_momentum": True}, {"augment": "flip", "data": "own"}, {"batch_size": 2000}]
)
def test_steps_that_are_not_plain_are_left_to_torch(more, monkeypatch):
    monkeypatch.setattr(defaults, "WORTH_PERCEPTRON", 0.0)
    if more.get("data") == "own":
        x = np.random.RandomState(0).rand(60, 1, 8, 8).astype(np.float32)
        s = settings({"data": "own", "model": "mlp_small", "clients": 3, "augment": "flip"})
        task = build(s, dataset=Dataset.of(x, np.arange(60) % 10))
    else:
        task = task_of(native=False, **more)
    task = defaults.by_rule(task)
    assert native_perceptron(parse("fedavg"), task) is None


def test_a_run_records_it_and_goes_on_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(defaults, "WORTH_PERCEPTRON", 0.0)
    given = {"clients": 30, "rounds": 3, "model": "mlp_small", "partition": "iid", "checkpoint_seconds": 0}
    run = headway.run("fedavg", **given, out=tmp_path / "r")
    assert run.config["options"]["at_once"] == 8 * 2**20 // (4 * 4810)
    whole = (run.path / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (run.path / name).unlink()
    max((run.path / "checkpoint").glob("round-*.json")).unlink()
    monkeypatch.setattr(defaults, "WORTH_PERCEPTRON", 1e9)  # by the rule of another version it would train otherwise
    headway.resume(run.path)
    assert (run.path / "model.safetensors").read_bytes() == whole
    two = headway.run("fedavg", **given, out=tmp_path / "s", workers=2)
    assert two.config["options"]["at_once"] == 0
    monkeypatch.setattr(defaults, "WORTH_PERCEPTRON", 0.0)
    two = headway.run("fedavg", **given, out=tmp_path / "t", workers=2)
    assert (two.path / "model.safetensors").read_bytes() == whole
    assert (two.path / "metrics.jsonl").read_bytes() == (run.path / "metrics.jsonl").read_bytes()
    assert two.summary["personal"] == run.summary["personal"]
