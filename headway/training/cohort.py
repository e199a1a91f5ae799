"""Cohorts: which clients of a small model train side by side in one batched program (together.py), and which alone.

The result equals training one by one within rounding. Who trains together follows from the clients of the round alone,
so no bit depends on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.base.serialise import flatten
from headway.base.tree import Tree, stream
from headway.core.recipe import Recipe
from headway.core.reports import Reports
from headway.core.state import Broadcast, Client
from headway.data.partitions.partition import Lists
from headway.training.client import first_client, train_client
from headway.training.nets import kept
from headway.training.perceptron import Perceptron, perceptron, train_perceptrons
from headway.training.task import ClientData, Task
from headway.training.together import Answers, train_together

BYTES_TOGETHER = 3 * 2**20  # of the parameters of one cohort: with gradients and momentum they fit the cache
MOST_TOGETHER, FEWEST_TOGETHER = 256, 8  # fewer gain too little
BYTES_AT_ONCE, MOST_AT_ONCE = 8 * 2**20, 4096  # of the clients that one call of native code trains
WORTH_A_CALL = 1e8  # floating-point operations of a unit
MOST_NUMBERS = 1 << 23  # of the samples of one call
MANY = 2_000  # clients that a run trains in all; for fewer, loading what vmap needs (0.3 s) takes longer
MOST_WORK = 4e7  # floating-point operations of a client's step; above, one product keeps a core busy
# Layers that compute each sample by itself, have no state and draw no random numbers.
LAYERS = (
    nn.Linear, nn.Flatten, nn.Identity, nn.LayerNorm, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softplus,
)  # fmt: skip


Unit = tuple[int, ...]
Train = Callable[[Recipe, Task, Broadcast, Sequence[Client]], Answers]


def at_once(task: Task) -> int:
    """How many clients one call of native code trains at most."""
    return max(1, min(MOST_AT_ONCE, BYTES_AT_ONCE // max(1, task.net_of({}).params().nbytes())))


def in_calls(task: Task, units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units in groups that one call of native code trains: not so many that their samples fill the memory."""
    group: list[Unit] = []
    numbers, held = prod(task.dataset.shape), 0
    for unit in units:
        mine = sum(map(task.data.size, unit)) * numbers
        if group and held + mine > MOST_NUMBERS:
            yield group
            group, held = [], 0
        group.append(unit)
        held += mine
    yield group


def plain_steps(task: Task) -> bool:
    """Whether local steps are plain SGD on the samples as they are."""
    s = task.settings
    return not (task.augment or s.amp or s.clip_norm is not None or s.persist_momentum)


def cohort_size(task: Task) -> int:
    """How many clients of this task train together, by a fixed rule; 1: one by one."""
    s, net = task.settings, task.net_of({})
    if not plain_steps(task):
        return 1
    if s.rounds * max(1, int(s.sampling * len(task.data))) < MANY:
        return 1
    leaves = [m for m in net.body.modules() if not list(m.children())]
    plain = all(type(m) in LAYERS for m in leaves) and not net.parts().running and not net.parts().local_buffers
    numbers = sum(p.numel() for p in net.params().values())
    size = min(MOST_TOGETHER, BYTES_TOGETHER // max(1, net.params().nbytes()))
    return size if plain and size >= FEWEST_TOGETHER and 6 * s.batch_size * numbers <= MOST_WORK else 1


def cohorts(recipe: Recipe, task: Task, ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The clients of a round in groups that train together; groups of one where the recipe or the task do not allow it.

    Clients with the same number of batches stand together, so that most of their steps have the same shape.
    """
    if net := native_perceptron(recipe, task):
        work = 6.0 * net.numbers * sum(map(task.data.size, ids)) * task.epochs
        calls = max(1, min(len(ids), round(work / WORTH_A_CALL)))  # small ones, so that all workers have some
        most = min(task.at_once, -(-len(ids) // calls))
    elif task.cohort >= FEWEST_TOGETHER and len(ids) >= FEWEST_TOGETHER and batches_together(recipe, task):
        most = task.cohort
    else:
        return [(k,) for k in ids]
    ordered = sorted(ids, key=lambda k: (-task.data.size(k), k))
    count = -(-len(ordered) // most)
    cuts = [len(ordered) * i // count for i in range(count + 1)]
    return [tuple(ordered[a:b]) for a, b in pairwise(cuts)]


def native_perceptron(recipe: Recipe, task: Task) -> Perceptron | None:
    """The layers, if native code trains clients of this recipe and a trial agrees; else None."""
    if not task.at_once:
        return None

    def found() -> Perceptron | None:
        net = perceptron(recipe, task) if allowed(recipe, task) else None
        if net is None:
            return None

        def train(recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client]) -> Answers:
            return train_perceptrons(recipe, task, cast, [clients], net)

        return net if agrees(recipe, task, train) else None

    return kept(task, f"native perceptron {recipe}", found)


def batches_together(recipe: Recipe, task: Task) -> bool:
    """Whether this recipe can: its hooks are known to be independent of the other clients, and a trial agrees."""
    return kept(task, f"batches together {recipe}", lambda: allowed(recipe, task) and agrees(recipe, task))


def allowed(recipe: Recipe, task: Task) -> bool:
    phases = recipe.local_phases(task.epochs)
    one = len(phases) == 1 and phases[0].steps is None and phases[0].loss == "recipe" and not phases[0].train_mode
    special = {"own model", "pooled data"} & recipe.provides() or "features of the last epoch" in recipe.requires()
    return one and not special and not recipe.acting("gradient") and not recipe.acting("equip")


def agrees(recipe: Recipe, task: Task, train: Train = train_together) -> bool:
    """Whether made-up clients give the same together and one by one, within rounding, in the first and last round."""
    try:
        return all(agrees_in(t, recipe, task, train) for t in {0, task.settings.rounds - 1})
    except Exception:  # a hook does what vmap or the made-up clients do not allow, such as looking at a value
        return False


def agrees_in(t: int, recipe: Recipe, task: Task, train: Train) -> bool:
    """A round t of three made-up clients, together and one by one: whether both give the same within rounding."""
    sizes = [5, 4, 2]
    n = sum(sizes)
    rng = stream("cohort trial")
    x = torch.rand((n, *task.dataset.shape), generator=rng)
    x = (x * 255).to(task.data.x.dtype) if not task.data.x.is_floating_point() else x
    y = torch.randint(task.classes, (n,), generator=rng)
    parts = Lists(np.arange(n), np.cumsum([0, *sizes]))
    data = ClientData(x.to(task.device), y.to(task.device), parts)
    settings = task.settings.model_copy(update={"batch_size": 2})
    small = replace(task, settings=settings, data=data)
    net = task.net(recipe)
    w = net.params().only(recipe.share).copy()
    sent = recipe.broadcast(recipe.init_server(w, net))
    cast = Broadcast(t, w, Tree(), sent)
    clients = [first_client(recipe, small, cast, k) for k in range(len(sizes))]
    reports, states = train(recipe, small, cast, clients)
    alone = [train_client(recipe, small, cast, client) for client in clients]
    kept_by = {client.id: client for client in states}
    together = [
        (report, kept_by.get(report.client, Client(report.client, Tree(), {}))) for report in Reports.of(reports)
    ]
    return all(alike(a, b) for a, b in zip(together, alone, strict=True))


def alike(a: Any, b: Any) -> bool:
    """Whether two answers are equal within rounding."""
    ours: dict[str, Tensor] = {}
    theirs: dict[str, Tensor] = {}
    if shape_of(flatten(a, ours)) != shape_of(flatten(b, theirs)) or ours.keys() != theirs.keys():
        return False
    pairs = ((v.float(), theirs[k].float()) for k, v in ours.items())
    return all(v.shape == u.shape and torch.allclose(v, u, rtol=1e-3, atol=1e-5, equal_nan=True) for v, u in pairs)


def shape_of(skeleton: Any) -> Any:
    """The skeleton without its numbers."""
    if isinstance(skeleton, dict):
        return {k: shape_of(v) for k, v in skeleton.items()}
    if isinstance(skeleton, list):
        return [shape_of(v) for v in skeleton]
    return None if isinstance(skeleton, float) else skeleton


def train_cohort(
    recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client], own_memory: bool = True,
    empty: Callable[[int], Tensor] = torch.empty,
) -> Answers:  # fmt: skip
    """One round of several clients: the same as `train_client` for each, within rounding.

    `empty`: memory for so many floats, where the caller wants the parameters.
    """
    if net := native_perceptron(recipe, task):
        return train_perceptrons(recipe, task, cast, [clients], net, empty)
    if len(clients) > 1:
        try:
            return train_together(recipe, task, cast, clients)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
            own_memory = True  # what the trial could not see, such as notes that differ in numbers: one by one
    answers = [train_client(recipe, task, cast, client, own_memory) for client in clients]
    return [report for report, _ in answers], [client for _, client in answers]


def first_clients(recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Client]:
    """The states of clients that have not trained yet."""
    if recipe.acting("init_client") or recipe.acting("share"):
        return [first_client(recipe, task, cast, k) for k in ids]
    nothing = Tree()
    return [Client(k, nothing, {}, nothing) for k in ids]
