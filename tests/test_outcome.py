"""The end of a run: the model made of the mean of personal ones."""

from __future__ import annotations

import torch
import toy

from headway import rounds
from headway.engine import LocalEngine
from headway.methods import recipe as parse
from headway.outcome import Outcome


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
