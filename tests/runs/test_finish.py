"""The end of a run: the model made of the mean of personal ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toy
from run_files import DIGITS
from safetensors.torch import load_file

import headway
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.runs.finish import Outcome
from headway.training import rounds


def test_mean_of_personal_models_averages_their_running_statistics_too(tmp_path, monkeypatch):
    task, recipe, engine = toy.skewed(3, model="resnet8", train_size=60), parse("local"), LocalEngine()
    server = rounds.run(recipe, task, engine, 1)
    judged = []
    original = rounds.global_net

    def watched(server, recipe, task):
        judged.append(original(server, recipe, task))
        return judged[-1]

    monkeypatch.setattr(rounds, "global_net", watched)
    Outcome(server, recipe, task, engine, [0, 1, 2], tmp_path, print).mean_head()
    clients = [engine.store.get(k).personal for k in engine.store.ids()]
    for name, value in judged[0].stats().items():
        expected = torch.stack([c[name] for c in clients]).mean(0)
        assert torch.allclose(value, expected, atol=1e-6), name
        assert not torch.equal(value, server.stats[name])


def test_personal_models_may_start_from_the_calibrated_one(tmp_path: Path) -> None:
    a = headway.run("fedavg+ccvr+ft(epochs=1,lr=1e-9)", out=tmp_path / "a", personal_from="calibrated", **DIGITS)
    b = headway.run("fedavg+ccvr+ft(epochs=1,lr=1e-9)", out=tmp_path / "b", **DIGITS)
    calibrated = load_file(a.path / "model.safetensors")["head.weight"]
    assert torch.allclose(load_file(a.path / "clients/0.safetensors")["head.weight"], calibrated, atol=1e-6)
    assert not torch.allclose(load_file(b.path / "clients/0.safetensors")["head.weight"], calibrated, atol=1e-3)


@pytest.mark.parametrize(("recipe", "told"), [("fedper", True), ("fedrod", False), ("fedtc", False)])
def test_the_mean_of_personal_heads_is_told_where_it_predicts(recipe, told, tmp_path):
    run = headway.run(recipe, out=tmp_path / "r", **DIGITS)
    assert ("global_acc_mean_of_personal" in run.summary) == told


def test_a_summarys_figures_are_those_of_the_saved_model(tmp_path):
    summary = headway.run("fedavg+ccvr", out=tmp_path / "r", **DIGITS).summary
    after = summary["calibrated"]
    assert summary["global_acc"] == after["after"]
    assert (summary["global_loss"], summary["balanced_acc"]) == (after["loss"], after["balanced_acc"])
    assert after["balanced_acc_before"] != after["balanced_acc"]
