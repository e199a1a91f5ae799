"""Buffers that training writes to: averaged where they are means, begun anew where not, and never a neighbour's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from toy import assert_same, one_round, skewed

from headway import models, rounds
from headway.client import first_client, train_client
from headway.methods import recipe as parse
from headway.tree import stream


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
    task, recipe = replace(skewed(3, train_size=90), make_body=writing(layer), _nets={}), parse("fedavg")
    cast = rounds.cast_of(rounds.begin(recipe, task), recipe)
    client = first_client(recipe, task, cast, 0)
    first = train_client(recipe, task, cast, client)
    train_client(recipe, task, cast, first_client(recipe, task, cast, 1))
    assert_same(train_client(recipe, task, cast, client), first)


def test_a_mean_in_a_buffer_is_averaged_over_clients_as_running_means_are() -> None:
    task, recipe = replace(skewed(3, train_size=90), make_body=writing("counting"), _nets={}), parse("fedavg")
    server, reports, _ = one_round("fedavg", task)
    assert list(server.stats) == ["body.2.seen"]  # the counter is a whole number and begins anew
    mean = sum(p * report.stats["body.2.seen"] for p, report in zip(task.weights(reports), reports, strict=True))
    assert torch.allclose(server.stats["body.2.seen"], mean)
    assert float(server.stats["body.2.seen"].abs().sum()) > 0
    assert not task.net(recipe).fixed().keys() & server.stats.keys()
