"""The end of a run: the model made of the mean of personal ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toy
from run_files import DIGITS
from safetensors.torch import load_file

import headway
from headway.engines import LocalEngine, local
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


@pytest.mark.parametrize(("recipe", "more", "passes"), [("fedavg", {}, 3), ("fedavg+ccvr", {}, 4), ("fedper", {}, 4)])
def test_nothing_is_evaluated_twice(recipe, more, passes, tmp_path, monkeypatch):
    """Three rounds, three passes; one more of a calibrated model and of the mean of personal heads."""
    judged, own = [], []
    original, answers = LocalEngine.logits, local.right_answers

    def logits(self, task, net, held_out=None):
        judged.append(net)
        return original(self, task, net, held_out)

    def right_answers(net, x, y, personal):
        own.append(len(y))
        return answers(net, x, y, personal)

    monkeypatch.setattr(LocalEngine, "logits", logits)
    monkeypatch.setattr(local, "right_answers", right_answers)
    run = headway.run(recipe, out=tmp_path / "r", **DIGITS | {"rounds": 3} | more)
    assert len(judged) == passes
    stages = run.summary["personal"]["stages"]
    clients = run.summary["personal"]["clients"]
    kept = recipe == "fedper"  # its clients have classifiers of their own: as received, they are judged in every round
    assert len(own) == (3 * clients if kept else (len(stages) - 1) * clients)
    assert stages["received"] == run.metrics["personal_acc"][-1]


def test_a_last_round_that_was_not_evaluated_is_evaluated_at_the_end(tmp_path):
    whole = headway.run("fedavg", out=tmp_path / "a", **DIGITS)
    (whole.path / "summary.json").rename(tmp_path / "old.json")  # as if it had been killed before it wrote the summary
    resumed = headway.resume(whole.path)
    assert resumed.summary["global_acc"] == headway.run("fedavg", out=tmp_path / "b", **DIGITS).summary["global_acc"]
    assert resumed.summary["personal"] == json.loads((tmp_path / "old.json").read_text())["personal"]
