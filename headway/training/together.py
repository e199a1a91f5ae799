"""Clients that train side by side in one batched program: the same as `train_client` for each, within rounding.

A step of a tiny model costs Python and dispatch rather than arithmetic. Here the parameters of M clients are the rows
of a matrix. The body runs for all of them at once (models/stacked.py), and torch.func.vmap runs the recipe's own hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from headway.base.serialise import flatten, unflatten
from headway.base.tree import Tree, stream
from headway.core.local import Batch, Local
from headway.core.phase import Step
from headway.core.recipe import Recipe
from headway.core.reports import Bundle, Part, Place, Rows
from headway.core.state import Broadcast, Client, Report
from headway.models.net import Net
from headway.models.stacked import stacked
from headway.training.client import detached_from, reported
from headway.training.loop import set_mode
from headway.training.nets import kept
from headway.training.sgd import fused_sgd
from headway.training.step_counts import batch_plan, gradient_weights, task_step
from headway.training.task import Task

Answers = tuple[list[Part], list[Client]]  # reports, and the states that are not blank


@dataclass
class Group:
    """Parameters that take the same steps: a row for each client, and where each parameter stands in it."""

    step: Step | None  # None: they are not trained in this phase
    shared: bool
    places: list[Place]
    w: Tensor  # [M, P]
    g: Tensor = field(init=False)
    momentum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.step is not None:
            self.g = torch.empty_like(self.w)
            self.momentum = torch.empty_like(self.w) if self.step.momentum else self.w[:, :0]

    def params(self, a: int, b: int) -> dict[str, Tensor]:
        """The parameters of clients a to b by name, [b - a, ...], as leaves of a graph."""
        return {k: v.requires_grad_(self.step is not None) for k, v in views(self.w[a:b].detach(), self.places).items()}

    def move(self, a: int, b: int, grads: Mapping[str, Tensor | None], first: bool) -> None:
        """m <- momentum m + g + decay w, then w <- w - rate m, for clients a to b; without a gradient: no step."""
        assert self.step is not None
        here = views(self.g[a:b], self.places)
        whole = all(grads[name] is not None for name in here)
        for name, place in here.items():
            if (g := grads[name]) is not None:
                place.copy_(g)
                if not whole:
                    at = next((start, start + place[0].numel()) for key, start, _ in self.places if key == name)
                    self._kernel(slice(a, b), slice(*at), first)
        if whole:
            self._kernel(slice(a, b), slice(None), first)

    def _kernel(self, rows: slice, columns: slice, first: bool) -> None:
        """torch's kernel goes through memory: parts of rows are copied, moved and put back."""
        assert self.step is not None
        parts = [t[rows, columns] for t in (self.w, self.g, *([self.momentum] if self.step.momentum else []))]
        w, g, *m = (t.contiguous() for t in parts)
        fused_sgd([w], [g], m, self.step.rate, self.step.momentum, self.step.decay, first)
        for part, moved in zip((parts[0], *parts[2:]), (w, *m), strict=True):
            if part.data_ptr() != moved.data_ptr() or not part.is_contiguous():
                part.copy_(moved)


def views(matrix: Tensor, places: Sequence[Place]) -> dict[str, Tensor]:
    """The parameters in the rows of a matrix, [M, ...]."""
    found = {}
    for name, at, shape in places:
        size = 1
        for n in shape:
            size *= n
        found[name] = matrix[:, at : at + size].view(len(matrix), *shape)
    return found


def train_together(recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client]) -> Answers:
    """One round of several clients: more full batches first, then larger last ones first."""
    sizes = [task.data.size(client.id) for client in clients]
    order = sorted(range(len(clients)), key=lambda i: (*(-part for part in divmod(sizes[i], task.batch_size)), i))
    return Cohort(recipe, task, cast, [clients[i] for i in order]).answers()


class Cohort:
    """Several clients in one phase of a round."""

    def __init__(self, recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client]) -> None:
        self.recipe, self.task, self.cast, self.clients = recipe, task, cast, clients
        (self.phase,), self.lr = recipe.local_phases(task.epochs), task.lr(cast.round)
        self.net = task.working_net(recipe)
        set_mode(self.net, self.phase, lone_sample=False)
        self.x, self.y, self.rows, self.sizes = task.data.together([c.id for c in clients])
        self.groups = self._grouped()
        self.plans = {n: batch_plan(task, self.net, self.phase, n) for n in set(self.sizes)}
        looks = recipe.acting("prepare") or recipe.acting("report")
        self.locals = [self._local(i) for i in range(len(clients))] if looks else []
        ready = [local.ready for local in self.locals] or [{}] * len(clients)
        notes = list(zip((c.kept for c in clients), ready, strict=True))
        self.notes = Notes.of(notes if any(a or b for a, b in notes) else notes[:1])
        self.body = kept(task, "stacked body", lambda: stacked(self.net.body))
        self.homes = homes_of(self.net)

    # ---- parameters
    def _grouped(self) -> list[Group]:
        """The first parameters: shared ones as received, personal ones each its own, by the steps they take."""
        plain = task_step(self.task, self.lr)
        steps = {name: self.phase.step(plain, name) for name in self.net.trainable() if self.phase.trains(name)}

        def kind(name: str) -> tuple[Step | None, bool]:
            return steps.get(name), self.recipe.share(name)

        found: dict[tuple[Step | None, bool], list[str]] = {}
        for name in self.net.trainable():
            found.setdefault(kind(name), []).append(name)
        return [self._group(step, shared, names) for (step, shared), names in found.items()]

    def _group(self, step: Step | None, shared: bool, names: Sequence[str]) -> Group:
        places, at = [], 0
        for name in names:
            shape = self.net.trainable()[name].shape
            places.append((name, at, tuple(shape)))
            at += shape.numel()
        if shared:
            row = torch.cat([self.cast.w[name].detach().reshape(-1) for name in names])
            return Group(step, shared, places, row.repeat(len(self.clients), 1))
        rows = [torch.cat([c.personal[name].reshape(-1) for name in names]) for c in self.clients]
        return Group(step, shared, places, torch.stack(rows))

    def _tree(self, i: int, shared: bool) -> Tree:
        """The shared, or the personal, parameters of client i, as views."""
        found = {k: v for group in self.groups if group.shared is shared for k, v in row_of(group, i).items()}
        return Tree({name: found[name] for name in self.net.trainable() if name in found})

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

    # ---- training
    def answers(self) -> Answers:
        """Train, and report for each client."""
        streams = {
            i: stream(self.task.seed, "train", self.cast.round, client.id)
            for i, client in enumerate(self.clients)
            if self.sizes[i] > self.task.batch_size  # the order of a single batch changes nothing but roundings
        }
        total, count = (torch.zeros(len(self.clients), device=self.x.device) for _ in range(2))
        for epoch in range(self.phase.epochs):
            rows = shuffled(self.rows, self.sizes, streams)
            last = epoch == self.phase.epochs - 1
            for a, b, start, end in slices(self.sizes, self.task.batch_size):
                loss = self._step(a, b, rows[a:b, start:end], first=epoch == start == 0)
                if last:
                    total[a:b] += loss
                    count[a:b] += 1
        losses = (total / count).tolist()
        if self.recipe.acting("report"):
            answers = [self._report(i, loss) for i, loss in enumerate(losses)]
            return [report for report, _ in answers], [client for _, client in answers if not client.blank]
        ids, steps = [c.id for c in self.clients], [self.plans[n].steps for n in self.sizes]
        rows_up = [Rows(group.w, group.places) for group in self.groups if group.shared]
        return [Bundle(ids, self.sizes, steps, losses, rows_up)], self._states()

    def _step(self, a: int, b: int, rows: Tensor, first: bool) -> Tensor:
        """One step of clients a to b on batches of equal size; returns their losses, [b - a]."""
        m, size = rows.shape
        flat = rows.reshape(-1).to(self.x.device)
        x = self.x.index_select(0, flat).view(m, size, *self.x.shape[1:])
        y = self.y.index_select(0, flat).view(m, size)
        params = {name: v for group in self.groups for name, v in group.params(a, b).items()}
        notes = self.notes.cut(a, b)
        h = self.body(self.net.body, params, self.net.inputs(x)) if self.body else x
        losses = torch.vmap(self._loss)(params, notes, x, y, h)
        leaves = {name: v for name, v in params.items() if v.requires_grad}
        found = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
        grads: dict[str, Tensor | None] = dict(zip(leaves, found, strict=True))
        if self.recipe.acting("correct"):
            whole = {k: torch.zeros_like(v) if (g := grads.get(k)) is None else g for k, v in params.items()}
            shared = {name: g for name, g in whole.items() if name in self.cast.w}
            grads |= whole | torch.vmap(self._corrected)(shared, params, notes)
        with torch.no_grad():
            for group in self.groups:
                if group.step is not None:
                    group.move(a, b, grads, first)
        return losses.detach()

    def _loss(self, params: dict[str, Tensor], notes: dict[str, Tensor], x: Tensor, y: Tensor, h: Tensor) -> Tensor:
        """The recipe's loss of one client's batch, as `loop.Loss` computes it; h: x where the body is not known."""
        recipe, local = self.recipe, self._seen(notes)
        with read_as(self.net, self.homes, params):
            h = h if self.body else self.net.features(x)  # [B, d]
            lifted = recipe.lift(h, y, local) if recipe.acting("lift") else h
            batch = Batch(x, y, h, self.net.head(lifted), lifted)
            value = recipe.criterion(batch, local)
            return value + recipe.penalty(batch, local) if recipe.acting("penalty") else value

    def _corrected(
        self, g: dict[str, Tensor], params: dict[str, Tensor], notes: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The corrected gradient of one client's shared parameters."""
        with read_as(self.net, self.homes, params):
            return dict(self.recipe.correct(Tree(g), self._seen(notes)))

    def _seen(self, notes: dict[str, Tensor]) -> Local:
        """A client inside vmap: with its notes, without its samples."""
        of_client, ready = unflatten(self.notes.skeleton, notes)
        cast, nothing = self.cast, torch.empty(0)
        return Local(
            self.net, cast.w, nothing, nothing, cast.round, self.lr, self.recipe.share, of_client, cast.sent, ready
        )

    # ---- results
    def _report(self, i: int, loss: float) -> tuple[Report, Client]:
        client, recipe = self.clients[i], self.recipe
        shared, personal = self._tree(i, shared=True), self._tree(i, shared=False).copy()
        w = shared.copy()  # notes may hold it, and would hold all clients' with it
        self.net.load(w, personal)
        with torch.no_grad():
            send, keep, up = reported(recipe, w, self.locals[i].trained(None))
        send, keep, up = detached_from(self.net, [send, keep, up])
        report = Report(client.id, self.sizes[i], self.plans[self.sizes[i]].steps, up, Tree(), send, loss)
        return report, Client(client.id, personal, keep)

    def _states(self) -> list[Client]:
        """The clients' new states where the recipe lets them keep something."""
        if all(group.shared for group in self.groups) and not any(any(c.kept.values()) for c in self.clients):
            return []
        return [Client(c.id, self._tree(i, shared=False).copy(), c.kept) for i, c in enumerate(self.clients)]


def row_of(group: Group, i: int) -> dict[str, Tensor]:
    return Rows(group.w, group.places).cut(group.w[i])


@dataclass(frozen=True)
class Notes:
    """A value of each client as one: tensors stacked in the order of the clients, [M, ...]; all else is the same."""

    skeleton: Any
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Notes:
        each: list[dict[str, Tensor]] = [{} for _ in values]
        skeletons = [flatten(value, tensors) for value, tensors in zip(values, each, strict=True)]
        if any(skeleton != skeletons[0] for skeleton in skeletons[1:]):
            raise ValueError("the clients' notes differ in more than tensors")
        return cls(skeletons[0], {path: torch.stack([t[path] for t in each]) for path in each[0]})

    def cut(self, a: int, b: int) -> dict[str, Tensor]:
        return {path: t[a:b] for path, t in self.tensors.items()}


# ---- a net with the parameters of a client inside vmap
Homes = dict[str, list[tuple[dict[str, Any], str]]]


def homes_of(net: Net) -> Homes:
    """Where each parameter stands: the dict of its module, and its name there; several where it is shared."""
    named = {id(p): name for name, p in net.trainable().items()}
    found: Homes = {name: [] for name in named.values()}
    for module in net.modules():
        for key, p in module._parameters.items():
            if p is not None:
                found[named[id(p)]].append((module._parameters, key))
    return found


@contextmanager
def read_as(net: Net, homes: Homes, params: dict[str, Tensor]) -> Iterator[None]:
    """While this lasts, the net's parameters are these tensors."""
    own = net.trainable()
    try:
        for name, value in params.items():
            for home, key in homes[name]:
                home[key] = value
        with net.params_read_as(params):
            yield
    finally:
        for name in params:
            for home, key in homes[name]:
                home[key] = own[name]


# ---- the order of samples
def shuffled(rows: Tensor, sizes: Sequence[int], streams: Mapping[int, torch.Generator]) -> Tensor:
    """The positions of each client's samples in the order of an epoch, [M, n]; those without a stream keep theirs."""
    if not streams:
        return rows
    order = rows.clone()
    for i, rng in streams.items():
        order[i, : sizes[i]] = rows[i, torch.randperm(sizes[i], generator=rng)]
    return order


def slices(sizes: Sequence[int], batch: int) -> Iterator[tuple[int, int, int, int]]:
    """(a, b, start, end) of the steps of an epoch: clients a to b train on their samples from start to end."""
    full = [n // batch for n in sizes]  # descending
    for s in range(full[0]):
        yield 0, sum(f > s for f in full), s * batch, (s + 1) * batch
    at = 0
    for n, alike in groupby(sizes):
        count = len(list(alike))
        if n % batch:
            yield at, at + count, n - n % batch, n
        at += count
