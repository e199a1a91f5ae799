"""Small federations that can be checked by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway import rounds
from headway.data import Dataset
from headway.data.partition import Partition
from headway.engine import LocalEngine
from headway.methods import recipe as parse
from headway.recipes import Recipe
from headway.settings import settings
from headway.state import Server
from headway.task import Task, build


class OneWeight(nn.Module):
    """h = u x: a body with a single weight, which starts at `start`."""

    def __init__(self, start: float = 1.0, dim: int = 1):
        super().__init__()
        self.u = nn.Parameter(torch.tensor(start))
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return self.u * x


def dataset(x: Any, y: Any, classes: int) -> Dataset:
    """A table of floats, not normalised; the test set is the training set."""
    x = torch.as_tensor(x, dtype=torch.float32)
    x = x[:, None] if x.ndim == 1 else x
    y = torch.as_tensor(y)
    names = tuple(str(c) for c in range(classes))
    width = x.shape[1]
    return Dataset("toy", x, y, x, y, classes, names, (0.0,) * width, (1.0,) * width, scale=1.0)


def partition(parts: Sequence[Sequence[int]], classes: int) -> Partition:
    """Client k holds the samples named in parts[k]."""
    index = np.array([i for part in parts for i in part], dtype=np.int64)
    offsets = np.cumsum([0, *(len(p) for p in parts)]).astype(np.int64)
    return Partition("by hand", 0, index, offsets, classes, "", {})


def task_of(
    x: Any,
    y: Any,
    parts: Sequence[Sequence[int]],
    *,
    classes: int = 2,
    body: Callable[[], nn.Module] | None = None,
    first: Callable[[Tensor, Any], Tensor] | None = None,
    bias: bool = True,
    **given: Any,
) -> Task:
    """A task on these samples, full batches and plain SGD unless said otherwise."""
    plain = {"model": "mlp_small", "local_test": "none", "momentum": 0.0, "lr": 0.1, "batch_size": 1000, "epochs": 1}
    data = dataset(x, y, classes)
    s = settings({**plain, "clients": len(parts), **given})
    built = build(s, dataset=data, partition=partition(parts, classes))
    if body is None:
        return built
    make = body
    return replace(built, make_body=lambda: (make(), {"bias": bias, "init": first}), _nets={})


def one_round(recipe: str | Recipe, task: Task, server: Server | None = None, engine: LocalEngine | None = None) -> Any:
    """(server after the round, reports, engine)."""
    recipe = parse(recipe) if isinstance(recipe, str) else recipe
    engine = engine or LocalEngine()
    server = server or rounds.begin(recipe, task)
    server, _, reports = rounds.run_round(server, recipe, task, engine)
    return server, reports, engine


def skewed(clients: int = 6, seed: int = 0, **given: Any) -> Task:
    """Digits, label-skewed: small and real."""
    values = {"data": "digits", "partition": "dir(0.1)", "clients": clients, "seed": seed, "rounds": 4, **given}
    return build(settings({"model": "mlp_small", **values}))


def state_of(server: Server, engine: LocalEngine) -> Any:
    """Everything that lasts, for comparison."""
    return copy.deepcopy((server, {k: engine.store.get(k) for k in engine.store.ids()}))


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Equal bit for bit, tensors and all."""
    assert type(a) is type(b), path
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, path
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert list(a) == list(b), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{path}/{i}")
    elif hasattr(a, "__dataclass_fields__"):
        for name in a.__dataclass_fields__:
            if not name.startswith("_"):
                assert_same(getattr(a, name), getattr(b, name), f"{path}/{name}")
    else:
        assert a == b or (a != a and b != b), path
