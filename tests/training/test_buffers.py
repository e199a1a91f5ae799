"""Buffers that training writes to: averaged where they are means, begun anew where not, and never a neighbour's."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from toy import assert_same, one_round, skewed

from headway import models
from headway.base.tree import Tree, stream
from headway.engines import ClientStore
from headway.methods import recipe as parse
from headway.runs.checkpoint import Checkpoints
from headway.runs.finish import notes_in
from headway.runs.runner import Options, Progress, execute, resume
from headway.training import rounds
from headway.training.client import first_client, train_client


class Counting(nn.Module):
    """Passes in training, and a mean of what they saw: both in buffers, both in the output."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self.register_buffer("seen", torch.zeros(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
            self.seen.lerp_(x.detach().mean(0), 0.1)
        return (x - self.seen) / (1 + 0.1 * self.passes)


def writing(layer: str) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def make() -> tuple[nn.Module, dict[str, Any]]:
        with models.seeded(stream(0, "init")):
            linear: nn.Module = nn.Linear(64, 16)
            after: nn.Module = nn.ReLU()
            if layer == "spectral_norm":
                linear = nn.utils.parametrizations.spectral_norm(linear)
            else:
                after = Counting(16) if layer == "counting" else nn.BatchNorm1d(16, momentum=None)
            body = nn.Sequential(nn.Flatten(), linear, after)
        body.dim = 16  # type: ignore[assignment]
        return body, {"bias": True, "init": None}

    return make


@pytest.mark.parametrize("layer", ["momentum=None", "spectral_norm", "counting"])
def test_what_training_writes_into_buffers_does_not_reach_the_next_client(layer: str) -> None:
    task, recipe = replace(skewed(3, train_size=90), make_body=writing(layer)), parse("fedavg")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    client = first_client(recipe, task, cast, 0)
    first = train_client(recipe, task, cast, client)
    train_client(recipe, task, cast, first_client(recipe, task, cast, 1))
    assert_same(train_client(recipe, task, cast, client), first)


def test_a_mean_in_a_buffer_is_averaged_over_clients_as_running_means_are() -> None:
    task, recipe = replace(skewed(3, train_size=90), make_body=writing("counting")), parse("fedavg")
    server, reports, _ = one_round("fedavg", task)
    assert list(server.stats) == ["body.2.seen"]  # the counter is a whole number and begins anew
    mean = sum(p * report.stats["body.2.seen"] for p, report in zip(task.weights(reports), reports, strict=True))
    assert torch.allclose(server.stats["body.2.seen"], mean)
    assert float(server.stats["body.2.seen"].abs().sum()) > 0
    assert not task.net(recipe).fixed().keys() & server.stats.keys()


class Masked(Counting):
    """An infinite mask, a table looked up by whole numbers: nothing that noise could be fed to."""

    def __init__(self, wide: int) -> None:
        super().__init__(wide)
        self.register_buffer("mask", torch.full((wide, wide), -math.inf).triu(1))
        self.table = nn.Embedding(17, wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.table(x.flatten(1).long()).mean(1))


def masked() -> tuple[nn.Module, dict[str, Any]]:
    with models.seeded(stream(0, "init")):
        body = Masked(16)
    body.dim = 16  # type: ignore[assignment]
    return body, {"bias": True, "init": None}


def masked_task(**given: Any) -> Any:
    return replace(skewed(3, train_size=90, normalise="none", **given), make_body=masked)


def test_a_network_that_noise_would_end_is_tried_with_zeros() -> None:
    net = masked_task().net(parse("fedavg"))
    assert net.moving == {"body.seen"}  # the table's row for zero moves the mean
    assert net.fixed().keys() == {"body.mask", "body.passes"}


def test_a_mask_of_infinity_is_no_model_that_ran_away(tmp_path: Path) -> None:
    task = masked_task(rounds=1, batch_size=16)
    for text in ("fedavg+ccvr", "fedavg+ft(epochs=1)"):
        run = execute(text, task.settings, tmp_path / text, task=task)
        assert notes_in(run.summary) == []


class Cut(Progress):
    """Ends the run in its third round."""

    def round(self, row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt


def test_a_checkpoint_that_knows_fewer_means_is_completed(tmp_path: Path) -> None:
    """A version before this one kept no mean but BatchNorm's."""
    ends = []
    for workers in (1, 3):
        task = replace(skewed(3, train_size=90, rounds=4), make_body=writing("counting"))
        out = tmp_path / str(workers)
        with pytest.raises(KeyboardInterrupt):
            execute("fedavg", task.settings, out, Options(progress=Cut(), checkpoint_seconds=0), task=task)
        checkpoints = Checkpoints(out / "checkpoint", json.loads((out / "config.json").read_text())["identity"])
        found, _ = checkpoints.load(torch.device("cpu"))
        assert found is not None
        shutil.rmtree(out / "checkpoint")
        fresh = Checkpoints(out / "checkpoint", json.loads((out / "config.json").read_text())["identity"])
        fresh.save(replace(found.server, stats=Tree()), ClientStore(), found.extra)
        ends.append(resume(out, Options(workers=workers), task=task).summary["global_loss"])
    assert ends[0] == ends[1]
