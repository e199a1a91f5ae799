"""Small federations that can be checked by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.base.tree import Tree
from headway.core.arrived import Arrived
from headway.core.local import Batch, Local
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.core.state import Report, Server
from headway.data import Dataset
from headway.data.partitions.partition import Partition
from headway.engines import LocalEngine
from headway.methods import recipe as parse
from headway.training import rounds
from headway.training.settings import settings
from headway.training.task import Task, build


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
    return replace(built, make_body=lambda: (make(), {"bias": bias, "init": first}))


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
        assert a.dtype == b.dtype, path
        assert a.shape == b.shape, path
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


def fixed(rows: Sequence[Sequence[float]]) -> Callable[[Tensor, Any], Tensor]:
    """A first classifier set by hand: task_of(..., first=fixed([[1.0], [-1.0]]))."""
    return lambda w, rng: torch.tensor(rows, dtype=torch.float32)


def two_clients(start: float = 0.0, **given: Any) -> Task:
    """h = u x and z = (h, -h). Client 0 holds x = 2 of class 0; client 1 holds x = 1 and x = 2 of class 1.

    At u = 0 the softmax is (1/2, 1/2): dL/du is -2 for client 0 and +1.5 for client 1, and dL/dW = 0 because h = 0.
    """
    values = {"bias": False, **given}
    first = fixed([[1.0], [-1.0]])
    return task_of([2.0, 1.0, 2.0], [0, 1, 1], [[0], [1, 2]], body=lambda: OneWeight(start), first=first, **values)


def slope(u: float, xs: Sequence[float], y: int, shift: float = 0.0, scale: float = 1.0) -> float:
    """dL/du of CE for h = u x + shift and z = scale (h, -h): -+ 2 scale x (1 - p_y), averaged over xs."""
    sign = 1.0 if y == 0 else -1.0
    wrong = [1 / (1 + math.exp(2 * scale * sign * (u * x + shift))) for x in xs]  # 1 - p_y
    return sum(-2 * scale * sign * x * q for x, q in zip(xs, wrong, strict=True)) / len(xs)


def head_step(u: float, a: float, xs: Sequence[float], y: int) -> float:
    """dL/da for z = (a h, -a h), counted on the row of class 0: -+ mean of h (1 - p_y)."""
    sign = 1.0 if y == 0 else -1.0
    each = [-sign * u * x / (1 + math.exp(2 * sign * a * u * x)) for x in xs]
    return sum(each) / len(each)


def several(recipe: str | Recipe, task: Task, n: int) -> tuple[Server, LocalEngine]:
    """(server, engine) after n rounds."""
    recipe = parse(recipe) if isinstance(recipe, str) else recipe
    engine = LocalEngine()
    return rounds.run(recipe, task, engine, n), engine


def local_of(
    task: Task, recipe: str | Recipe, k: int = 0, *, t: int = 0, kept: Any = None, sent: Any = None, ready: Any = None
) -> Local:
    """Client k as one piece's hook sees it, the net still at the first weights; kept, sent, ready are the piece's."""
    recipe = parse(recipe) if isinstance(recipe, str) else recipe
    net, (x, y) = task.net(recipe), task.data[k]
    w0 = net.params().copy().only(recipe.share)
    k_eff = w0.map(lambda v: torch.tensor(1.0))
    lr = task.lr(t)
    return Local(net, w0, x, y, t, lr, recipe.share, kept or {}, sent or {}, ready or {}, lambda pulled: k_eff)


def arrived_at(
    w: Tree, reports: Sequence[Report] | None = None, p: Sequence[float] | None = None, *, kept: Any = None,
    w_new: Tree | None = None, num_clients: int | None = None,
) -> Arrived:  # fmt: skip
    """The server's view of these reports; kept and the reports' messages are one piece's.

    Where no reports are given, one client has answered, and w_new is where it ended.
    """
    new = Tree() if w_new is None else w_new
    reports = [Report(0, 1, 1, new, Tree(), {})] if reports is None else reports
    weights = [1 / len(reports)] * len(reports) if p is None else p
    return Arrived(w, reports, weights, num_clients or len(reports), round=0, lr=0.1, kept=kept or {}, w_new=new)


def stepped_by(piece: Piece, arrived: Arrived) -> tuple[Tree, Any]:
    """(parameters, note) after the piece's absorb and server step."""
    note = piece.absorb(arrived)
    return piece.server_step(arrived.w_new, replace(arrived, kept=note)), note


def batch_of(local: Local) -> Batch:
    """All of the client's data as one batch, through its net as it stands."""
    h = local.net.features(local.x)
    return Batch(local.x, local.y, h, local.net.head(h))


def watching(look: Callable[[Batch, Local], None], *pieces: str) -> Recipe:
    """The recipe of these pieces, with one more that looks at every batch and adds nothing."""

    class Watching(Piece):
        name, slot = "watching", "reg"

        def penalty(self, batch: Batch, local: Local) -> Tensor:
            look(batch, local)
            return torch.zeros(())

    return Recipe((*parse("+".join(pieces) or "fedavg").pieces, Watching()))


class Normed(nn.Module):
    """h = BatchNorm(A x + b), 2 -> 2."""

    def __init__(self, track: bool = True):
        super().__init__()
        self.fc, self.bn, self.dim = nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=track), 2
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[1.0, 0.5], [-0.5, 1.0]]))
            self.fc.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.fc(x))


def normed(**given: Any) -> Task:
    """Two clients, of two and three samples, whose body has running statistics."""
    x = [[1.0, 0.0], [3.0, 1.0], [2.0, 5.0], [0.0, 4.0], [7.0, 7.0]]
    return task_of(x, [0, 1, 0, 1, 1], [[0, 1], [2, 3, 4]], body=Normed, **given)


def assert_trains_like_fedavg(recipe: str, n: int = 3, bitwise: bool = True) -> None:
    """The global model after n rounds of label-skewed digits is FedAvg's, bit for bit or to rounding."""
    task = skewed(4, train_size=160, sampling=0.5, momentum=0.9, weight_decay=1e-3)
    (found, _), (plain, _) = several(recipe, task, n), several("fedavg", task, n)
    assert found.w.keys() == plain.w.keys()
    if bitwise:
        assert_same((found.w, found.stats), (plain.w, plain.stats))
    for name, v in plain.w.items():
        assert torch.allclose(found.w[name], v, atol=1e-6), name
