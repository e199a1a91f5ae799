"""Cohorts: clients of a small model that train side by side in one batched program, instead of one after another.

A step of a tiny model costs Python and dispatch rather than arithmetic. Here the parameters of M clients are stacked,
[M, ...], and torch.func.vmap runs the recipe's own hooks for all of them. The result equals training one by one within
rounding. Who trains together follows from the clients of the round alone, so no bit depends on the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headway.base.serialise import flatten, unflatten
from headway.base.tree import Tree, stream
from headway.core.local import Batch, Local
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Client, Report
from headway.data.partitions.partition import Lists
from headway.models.net import Net
from headway.training.client import detached_from, first_client, reported, train_client
from headway.training.loop import set_mode
from headway.training.nets import kept
from headway.training.sgd import fused_sgd, in_layout_of
from headway.training.step_counts import batch_plan, gradient_weights, task_step
from headway.training.task import ClientData, Task

BYTES_TOGETHER = 3 * 2**20  # of the parameters of one cohort: with gradients and momentum they fit the cache
MOST_TOGETHER, FEWEST_TOGETHER = 256, 8  # fewer gain too little
MANY = 2_000  # clients that a run trains in all; for fewer, loading what vmap needs (0.3 s) takes longer
MOST_WORK = 4e7  # floating-point operations of a client's step; above, one product keeps a core busy
# Layers that compute each sample by itself, have no state and draw no random numbers.
LAYERS = (
    nn.Linear, nn.Flatten, nn.Identity, nn.LayerNorm, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softplus,
)  # fmt: skip
Answer = tuple[Report, Client]


def cohort_size(task: Task) -> int:
    """How many clients of this task train together, by a fixed rule; 1: one by one."""
    s, net = task.settings, task.net_of({})
    if task.augment or s.amp or s.clip_norm is not None or s.persist_momentum:
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
    if task.cohort < FEWEST_TOGETHER or len(ids) < FEWEST_TOGETHER or not batches_together(recipe, task):
        return [(k,) for k in ids]
    ordered = sorted(ids, key=lambda k: (-task.data.size(k), k))
    count = -(-len(ordered) // task.cohort)
    cuts = [len(ordered) * i // count for i in range(count + 1)]
    return [tuple(ordered[a:b]) for a, b in pairwise(cuts)]


def batches_together(recipe: Recipe, task: Task) -> bool:
    """Whether this recipe can: its hooks are known to be independent of the other clients, and a trial agrees."""
    return kept(task, f"batches together {recipe}", lambda: allowed(recipe, task) and agrees(recipe, task))


def allowed(recipe: Recipe, task: Task) -> bool:
    phases = recipe.local_phases(task.epochs)
    one = len(phases) == 1 and phases[0].steps is None and phases[0].loss == "recipe" and not phases[0].train_mode
    special = {"own model", "pooled data"} & recipe.provides() or "features of the last epoch" in recipe.requires()
    return one and not special and not recipe.acting("gradient") and not recipe.acting("equip")


def agrees(recipe: Recipe, task: Task) -> bool:
    """Whether made-up clients give the same together and one by one, within rounding, in the first and last round."""
    try:
        return all(agrees_in(t, recipe, task) for t in {0, task.settings.rounds - 1})
    except Exception:  # a hook does what vmap or the made-up clients do not allow, such as looking at a value
        return False


def agrees_in(t: int, recipe: Recipe, task: Task) -> bool:
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
    together = train_together(recipe, small, cast, clients)
    alone = [train_client(recipe, small, cast, client) for client in clients]
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
    recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client], own_memory: bool = True
) -> list[Answer]:
    """One round of several clients: the same as `train_client` for each, within rounding."""
    if len(clients) == 1:
        return [train_client(recipe, task, cast, clients[0], own_memory)]
    try:
        return train_together(recipe, task, cast, clients)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
        # what the trial could not see, such as notes that differ in numbers; an error of a hook comes again here
        return [train_client(recipe, task, cast, client) for client in clients]


def train_together(recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client]) -> list[Answer]:
    """The same as one batched program."""
    sizes = [task.data.size(client.id) for client in clients]
    order = sorted(range(len(clients)), key=lambda i: (*(-part for part in divmod(sizes[i], task.batch_size)), i))
    cohort = Cohort(recipe, task, cast, [clients[i] for i in order])
    answers = dict(zip(order, cohort.answers(), strict=True))
    return [answers[i] for i in range(len(clients))]


class Cohort:
    """Clients in the order of their batches: more full ones first, then larger last ones first."""

    def __init__(self, recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client]) -> None:
        self.recipe, self.task, self.cast, self.clients = recipe, task, cast, clients
        (self.phase,), self.lr = recipe.local_phases(task.epochs), task.lr(cast.round)
        self.net = task.working_net(recipe)
        set_mode(self.net, self.phase, lone_sample=False)
        self.x, self.y, self.rows = task.data.together([c.id for c in clients])
        self.sizes = [len(rows) for rows in self.rows]
        self.params = self._first_params()
        self.shared = [name for name in self.params if recipe.share(name)]
        self.personal = [name for name in self.params if name not in self.shared]
        plain = task_step(task, self.lr)
        self.steps = {name: self.phase.step(plain, name) for name in self.params if self.phase.trains(name)}
        self.momentum = {name: torch.empty_like(self.params[name]) for name, s in self.steps.items() if s.momentum}
        self.plans = {n: batch_plan(task, self.net, self.phase, n) for n in set(self.sizes)}
        looks = recipe.acting("prepare") or recipe.acting("report")
        self.locals = [self._local(i) for i in range(len(clients))] if looks else []
        ready = [local.ready for local in self.locals] or [{}] * len(clients)
        notes = list(zip((c.kept for c in clients), ready, strict=True))
        self.notes = Stacked.of(notes if any(a or b for a, b in notes) else notes[:1])
        self.functional = Functional(self.net)

    def _first_params(self) -> dict[str, Tensor]:
        """The parameters of all clients by name, [M, ...]: the shared ones as received, personal ones each its own."""
        count = len(self.clients)
        shared = {name: v.detach().expand(count, *v.shape).clone() for name, v in self.cast.w.items()}
        own = {name: torch.stack([c.personal[name] for c in self.clients]) for name in self.clients[0].personal}
        return {name: (shared | own)[name] for name in self.net.trainable()}

    def _local(self, i: int) -> Local:
        """Client i as its hooks see it before and after training."""
        client, task, recipe = self.clients[i], self.task, self.recipe
        x, y = task.data[client.id]
        plan = self.plans[self.sizes[i]]
        local = Local(
            self.net, self.cast.w, x, y, self.cast.round, self.lr, recipe.share, client.kept, self.cast.sent,
            step_weights=partial(gradient_weights, task, self.net, [self.phase], [plan], recipe, self.lr),
        )  # fmt: skip
        if not recipe.acting("prepare"):
            return local
        self.net.load(self.cast.w, client.personal)
        return local.prepared(recipe.prepare(local))

    def answers(self) -> list[Answer]:
        """Train, and report for each client."""
        streams = [stream(self.task.seed, "train", self.cast.round, c.id) for c in self.clients]
        total, count = (torch.zeros(len(self.clients), device=self.x.device) for _ in range(2))
        for epoch in range(self.phase.epochs):
            rows = shuffled(self.rows, streams)
            last = epoch == self.phase.epochs - 1
            for a, b, start, end in slices(self.sizes, self.task.batch_size):
                loss = self._step(a, b, rows[a:b, start:end], start, first=epoch == start == 0)
                if last:
                    total[a:b] += loss
                    count[a:b] += 1
        mean = (total / count).tolist()
        return [self._answer(i, mean[i]) for i in range(len(self.clients))]

    def _step(self, a: int, b: int, rows: Tensor, start: int, first: bool) -> Tensor:
        """One step of clients a to b on batches of equal size; returns their losses, [b - a]."""
        m, size = rows.shape
        flat = rows.reshape(-1).to(self.x.device)
        x = self.x.index_select(0, flat).view(m, size, *self.x.shape[1:])
        y = self.y.index_select(0, flat).view(m, size)
        params = {name: v[a:b].detach().requires_grad_(name in self.steps) for name, v in self.params.items()}
        notes = self.notes.cut(a, b)
        losses = torch.vmap(self._loss)(params, notes, x, y)
        moved = {name: params[name] for name in self.steps}
        grads = dict(
            zip(moved, torch.autograd.grad(losses.sum(), list(moved.values()), allow_unused=True), strict=True)
        )
        if self.recipe.acting("correct"):
            whole = {
                name: torch.zeros_like(params[name]) if grads.get(name) is None else grads[name] for name in params
            }
            shared = {name: g for name, g in whole.items() if name in self.cast.w}
            corrected = torch.vmap(self._corrected)(shared, params, notes)
            grads = {name: corrected.get(name, whole[name]) for name in moved}
        self._move(a, b, moved, grads, first)
        return losses.detach()

    def _move(self, a: int, b: int, moved: dict[str, Tensor], grads: Mapping[str, Tensor | None], first: bool) -> None:
        """m <- momentum m + g + decay w, then w <- w - rate m, for clients a to b."""
        for rates in set(self.steps.values()):
            alike = {name: g for name, g in grads.items() if g is not None and self.steps[name] == rates}
            with torch.no_grad():
                params, found = [moved[name] for name in alike], [in_layout_of(moved[k], g) for k, g in alike.items()]
                momenta = [self.momentum[name][a:b] for name in alike] if rates.momentum else []
                fused_sgd(params, found, momenta, rates.rate, rates.momentum, rates.decay, first)

    def _loss(self, params: dict[str, Tensor], notes: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The recipe's loss of one client's batch, as `loop.Loss` computes it."""

        def loss() -> Tensor:
            recipe, local = self.recipe, self._seen(notes)
            h = self.net.features(x)  # [B, d]
            lifted = recipe.lift(h, y, local) if recipe.acting("lift") else h
            batch = Batch(x, y, h, self.net.head(lifted), lifted)
            value = recipe.criterion(batch, local)
            return value + recipe.penalty(batch, local) if recipe.acting("penalty") else value

        return self.functional.with_params(params, loss)

    def _corrected(
        self, g: dict[str, Tensor], params: dict[str, Tensor], notes: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The corrected gradient of one client's shared parameters."""
        seen = self._seen(notes)
        return dict(self.functional.with_params(params, lambda: self.recipe.correct(Tree(g), seen)))

    def _seen(self, notes: dict[str, Tensor]) -> Local:
        """A client inside vmap: with its notes, without its samples."""
        kept, ready = unflatten(self.notes.skeleton, notes)
        cast, nothing = self.cast, torch.empty(0)
        return Local(self.net, cast.w, nothing, nothing, cast.round, self.lr, self.recipe.share, kept, cast.sent, ready)

    def _answer(self, i: int, loss: float) -> Answer:
        client, recipe = self.clients[i], self.recipe
        w = Tree({name: v[i] for name, v in self.params.items()})
        send: dict[str, Any] = {}
        keep = client.kept
        up = Tree({name: w[name] for name in self.shared}) if self.personal else w
        if recipe.acting("report"):
            w = w.copy()  # notes may hold it, and would hold all clients' with it
            self.net.load(w)
            with torch.no_grad():
                send, keep, up = reported(recipe, w.only(recipe.share), self.locals[i].trained(None))
            send, keep, up = detached_from(self.net, [send, keep, up])
        report = Report(client.id, self.sizes[i], self.plans[self.sizes[i]].steps, up, Tree(), send, loss)
        return report, Client(client.id, Tree({name: w[name].clone() for name in self.personal}), keep)


@dataclass(frozen=True)
class Stacked:
    """A value of each client as one: tensors stacked in the order of the clients, [M, ...]; all else is the same."""

    skeleton: Any
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Stacked:
        each: list[dict[str, Tensor]] = [{} for _ in values]
        skeletons = [flatten(value, tensors) for value, tensors in zip(values, each, strict=True)]
        if any(skeleton != skeletons[0] for skeleton in skeletons[1:]):
            raise ValueError("the clients' notes differ in more than tensors")
        return cls(skeletons[0], {path: torch.stack([t[path] for t in each]) for path in each[0]})

    def cut(self, a: int, b: int) -> dict[str, Tensor]:
        return {path: t[a:b] for path, t in self.tensors.items()}


class Functional(nn.Module):
    """Calls a function while the net's parameters are others, such as those of a client inside vmap."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, f: Callable[[], Any]) -> Any:
        return f()

    def with_params(self, params: dict[str, Tensor], f: Callable[[], Any]) -> Any:
        with self.net.params_read_as(params):
            return torch.func.functional_call(self, {f"net.{name}": v for name, v in params.items()}, (f,))


def shuffled(rows: Sequence[Tensor], streams: Sequence[torch.Generator]) -> Tensor:
    """The positions of each client's samples in the order of an epoch, [M, n]; short rows are filled with zeros."""
    order = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for i, (mine, rng) in enumerate(zip(rows, streams, strict=True)):
        order[i, : len(mine)] = mine[torch.randperm(len(mine), generator=rng)]
    return order


def slices(sizes: Sequence[int], batch: int) -> Iterator[tuple[int, int, int, int]]:
    """(a, b, start, end) of the steps of an epoch: clients a to b train on their samples from start to end."""
    full = [n // batch for n in sizes]  # descending
    for s in range(full[0]):
        yield 0, sum(f > s for f in full), s * batch, (s + 1) * batch
    for n in sorted(set(sizes), reverse=True):
        if n % batch:
            yield sizes.index(n), sizes.index(n) + sizes.count(n), n - n % batch, n
