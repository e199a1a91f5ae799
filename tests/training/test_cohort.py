"""Cohorts: clients that train together give what they give one by one, within rounding, whoever carries them out."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from toy import skewed

import headway
from headway.analysis.laws import difference
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.data import Dataset
from headway.engines import LocalEngine, PoolEngine
from headway.methods import REGISTRY
from headway.methods import recipe as parse
from headway.runs.directory import read_model
from headway.training import cohort, defaults, rounds
from headway.training.cohort import alike, batches_together, cohort_size, cohorts
from headway.training.settings import settings
from headway.training.task import build
from headway.training.together import slices

WITH = {"dotreg": "sphere+dotreg", "algorithm2": "fedetf+algorithm2", "alg2": "fedetf+alg2"}
TOGETHER = [
    "fedavg", "fedprox(mu=0.1)", "scaffold", "fednova", "feddyn", "fedexp", "fedadam", "fedetf", "fedavg_etf", "fedfn",
    "fedbabu", "spherefed-mse", "fedper", "fedtc", "fedrs", "gmv(warmup=1)", "scaffold+fn+prox(mu=0.1)",
    "fedper+scaffold",
]  # fmt: skip
ALONE = ["moon", "fedntd", "fedmmd", "ditto", "fedrep", "perfedavg", "centralized", "fedproto", "fednh"]


def task_of(size: int = 256, **more):
    """Ten label-skewed clients, few of them with as many samples as another."""
    s = {"data": "digits", "model": "mlp_small", "clients": 10, "partition": "dir(0.3)", "batch_size": 10, "epochs": 2}
    return replace(build(settings(s | {"train_size": 300, "weight_decay": 1e-3} | more)), cohort=size)


@pytest.mark.parametrize("text", TOGETHER)
def test_a_cohort_gives_what_its_clients_give_alone(text):
    together, recipe = task_of(), parse(text)
    assert batches_together(recipe, together)
    states = []
    for task in (together, task_of(1)):
        engine = LocalEngine()
        server = rounds.run(recipe, task, engine, 2)
        states.append((server, {k: engine.store.get(k) for k in engine.store.ids()}))
    (one, clients), (other, alone) = states
    for key, v in one.w.items():
        torch.testing.assert_close(v, other.w[key], rtol=1e-3, atol=2e-5)
    assert clients.keys() == alone.keys()
    assert all(alike(clients[k].personal, alone[k].personal) for k in clients)


@pytest.mark.parametrize("text", ALONE)
def test_what_vmap_cannot_do_trains_one_by_one(text):
    recipe = parse(text)
    task = replace(task_of().for_recipe(recipe), cohort=256)
    assert cohorts(recipe, task, task.everyone()) == [(k,) for k in task.everyone()]


def test_every_named_recipe_is_tried_and_most_train_together():
    task = task_of()
    recipes = [parse(WITH.get(name, name)) for name in REGISTRY.names()]
    together = [r for r in recipes if batches_together(r, replace(task.for_recipe(r), cohort=256))]
    assert len(together) > 2 * len(recipes) / 3


@pytest.mark.parametrize("text", ["scaffold", "fedper", "fedavg"])
def test_the_number_of_workers_changes_no_bit(text):
    task, recipe = task_of(8, clients=20), parse(text)
    assert len(cohorts(recipe, task, task.everyone())) == 3
    local = LocalEngine()
    one = rounds.run(recipe, task, local, 2)
    with closing(PoolEngine(recipe, task, 2)) as pool:
        two = rounds.run(recipe, task, pool, 2)
        assert difference(one, two) is None
        for k in local.store.ids():
            assert difference(local.store.get(k), pool.store.get(k)) is None


def test_who_trains_together_follows_from_the_clients_alone():
    task, recipe = task_of(4, clients=20), parse("fedavg")
    task = replace(task, cohort=8)
    units = cohorts(recipe, task, task.everyone())
    assert sorted(k for unit in units for k in unit) == task.everyone()
    assert max(map(len, units)) <= 8
    sizes = [task.data.size(k) for unit in units for k in unit]
    assert sizes == sorted(sizes, reverse=True)
    assert units == cohorts(recipe, task, task.everyone()[::-1])


def test_the_steps_of_an_epoch_by_hand():
    # batches of 10: 25 = 10 + 10 + 5, twice; 20 = 10 + 10; 7; 3
    assert list(slices([25, 25, 20, 7, 3], 10)) == [
        (0, 3, 0, 10), (0, 3, 10, 20), (0, 2, 20, 25), (3, 4, 0, 7), (4, 5, 0, 3),
    ]  # fmt: skip
    assert list(slices([4, 4], 32)) == [(0, 2, 0, 4)]


@pytest.mark.parametrize(
    ("layers", "more"),
    [
        ([nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)], {}),  # products of small convolutions gain nothing
        ([nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)], {}),
        ([nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.1), nn.Linear(8, 10)], {}),
        ([nn.Flatten(), nn.Linear(64, 2000), nn.Linear(2000, 10)], {}),  # too large for the cache
        ([nn.Flatten(), nn.Linear(64, 200), nn.Linear(200, 10)], {"batch_size": 1000}),  # a step is work enough
        ([nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)], {"clip_norm": 1.0}),
        ([nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)], {"persist_momentum": True}),
        ([nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 10)], {"augment": "flip"}),
    ],
)
def test_tasks_whose_clients_train_alone(layers, more, monkeypatch):
    monkeypatch.setattr(cohort, "MANY", 0)
    x, y = np.random.RandomState(0).rand(40, 1, 8, 8).astype(np.float32), np.arange(40) % 10
    s = settings({"data": "own", "model": "own", "clients": 10, "partition": "iid", **more})
    task = build(s, dataset=Dataset.of(x, y), model=lambda: nn.Sequential(*layers))
    assert cohort_size(task) == 1


def test_a_run_must_train_many_clients():
    assert cohort_size(task_of(clients=20, rounds=99)) == 1
    assert cohort_size(task_of(clients=20, rounds=100)) == 163
    assert cohort_size(task_of(clients=20, rounds=100, sampling=0.5)) == 1


class Peeking(Piece):
    """Its penalty depends on a value, which vmap cannot give."""

    name, slot = "peeking", "reg"

    def penalty(self, batch, local):
        return batch.z.sum() * 0 if float(batch.z.detach().sum()) > 0 else batch.z.sum()


class Wrong(Piece):
    """Its penalty is another one where many clients train together."""

    name, slot = "wrong", "reg"

    def penalty(self, batch, local):
        return batch.z.square().mean() * (2.0 if len(local.y) else 1.0)


@pytest.mark.parametrize("piece", [Peeking(), Wrong()])
def test_a_hook_that_a_trial_finds_unfit_trains_one_by_one(piece):
    recipe = REGISTRY.sum_of([piece])
    assert isinstance(recipe, Recipe)
    assert not batches_together(recipe, task_of())


class Counting(Piece):
    """A client keeps a number, its rounds so far, which differs between clients after the first round."""

    name, slot = "counting", "post"

    def report(self, w, local):
        rounds_so_far = local.kept.get("rounds", 0) + 1
        return {"w": w * (1 - 0.01 * rounds_so_far)}, {"rounds": rounds_so_far}


def test_a_cohort_whose_notes_differ_in_numbers_trains_one_by_one():
    recipe, results = REGISTRY.sum_of([Counting()]), []
    for size in (256, 1):
        task = task_of(size, clients=20, sampling=0.5)
        assert size == 1 or batches_together(recipe, task)
        results.append(rounds.run(recipe, task, LocalEngine(), 4).w)
    for key, v in results[0].items():
        torch.testing.assert_close(v, results[1][key], rtol=1e-3, atol=2e-5)


def test_a_run_records_its_cohort_and_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cohort, "MANY", 40)  # 20 clients in 2 rounds
    run = headway.run("scaffold", clients=20, rounds=2, model="mlp_small", out=tmp_path / "r", checkpoint_seconds=0)
    assert run.config["options"]["cohort"] == 163  # 3 MB of models of 64 x 64 + 64 + 64 x 10 + 10 numbers
    model = (run.path / "model.safetensors").read_bytes()
    for name in ("summary.json", "model.safetensors"):
        (run.path / name).unlink()
    newest = max((run.path / "checkpoint").glob("round-*.json"))
    newest.unlink()
    monkeypatch.setattr(cohort, "BYTES_TOGETHER", 0)  # another version has another rule
    headway.resume(run.path)
    assert (run.path / "model.safetensors").read_bytes() == model


def test_a_run_from_before_cohorts_goes_on_one_by_one(tmp_path):
    run = headway.run("fedavg", clients=10, rounds=2, model="mlp_small", out=tmp_path / "r")
    config = json.loads((run.path / "config.json").read_text())
    for name in defaults.RECORD:
        del config["options"][name]
    (run.path / "config.json").write_text(json.dumps(config))
    shutil.rmtree(run.path / "checkpoint")
    for name in ("summary.json", "model.safetensors", "metrics.jsonl"):
        (run.path / name).unlink()
    headway.resume(run.path)
    task, recipe = skewed(10, rounds=2), parse("fedavg")
    alone = rounds.run(recipe, task, LocalEngine(), 2)
    saved, _ = read_model(run.path / "model.safetensors")
    assert all(torch.equal(saved[name], v) for name, v in alone.w.items())
