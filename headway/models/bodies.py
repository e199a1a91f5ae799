"""Building a body by its model's name, with first weights from a given random stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headway.base.errors import ModelError
from headway.base.lazy import torch
from headway.base.registered import is_known, nearest_known
from headway.models.catalogue import MODELS, POLICIES, Model

if TYPE_CHECKING:
    from torch import nn


def body(name: str, shape: tuple[int, ...], *, bn: str = "running", seed_stream: torch.Generator) -> nn.Module:
    """The body called `name` for inputs of `shape`; its weights depend only on the stream."""
    if not is_known(name, MODELS):
        raise ModelError(f"model '{name}' is unknown; {nearest_known(name, MODELS)}")
    if bn not in POLICIES:
        raise ModelError(f"bn '{bn}' is unknown; use one of {', '.join(POLICIES)}")
    model = MODELS[name]
    _check_shape(model, shape)
    with seeded(seed_stream):
        return model.build(tuple(shape), bn)


@contextmanager
def seeded(seed_stream: torch.Generator) -> Iterator[None]:
    """Within this block torch's generator starts from the stream's seed; at its end the earlier state is restored."""
    with torch.random.fork_rng(devices=[]):
        # only the CPU's generator: torch.manual_seed would also reset those of GPUs, which are not restored here
        torch.default_generator.manual_seed(seed_stream.initial_seed())
        yield


def _check_shape(model: Model, shape: tuple[int, ...]) -> None:
    size = "x".join(map(str, shape)) or "scalar"
    if not shape or min(shape) < 1:
        raise ModelError(f"model '{model.name}' cannot take inputs of shape {size}: every size must be 1 or more")
    if not model.images:
        return
    if len(shape) != 3:
        raise ModelError(
            f"model '{model.name}' needs images (channels x height x width) but inputs have shape {size}; "
            "use 'mlp' for tabular data"
        )
    if min(shape[1:]) < model.min_size:
        raise ModelError(
            f"model '{model.name}' cannot take {size} images: its smallest side is {model.min_size}; "
            f"use a model for small images ('resnet8', 'mlp')"
        )
