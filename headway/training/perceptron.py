"""Clients of a multilayer perceptron whose recipe leaves local training to FedAvg: SGD on the cross-entropy, in C++.

The same as `train_client` for each, within rounding: one call trains many clients (models/native/mlp.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.base.tree import Tree, stream
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Bundle, Part, Place, Rows
from headway.core.state import Broadcast, Client
from headway.models.graph import traced
from headway.models.heads import Head
from headway.models.native import mlp
from headway.models.net import Net
from headway.training.nets import kept
from headway.training.step_counts import batch_plan, task_step
from headway.training.task import Task
from headway.training.together import Answers

HOOKS = ("prepare", "lift", "criterion", "penalty", "gradient", "correct", "report", "equip")  # of local training


@dataclass(frozen=True)
class Perceptron:
    """The layers of a net by their names: linear ones, with a ReLU after all but the last."""

    linear: tuple[str, ...]
    numbers: int  # of all parameters


def perceptron(recipe: Recipe, task: Task) -> Perceptron | None:
    """The net of this recipe as a perceptron; None if it is none, or if a piece acts in local training."""
    if (
        task.batch_size > mlp.MOST_SAMPLES
        or any(recipe.acting(hook) for hook in HOOKS)
        or task.dataset.x.dtype.is_complex
    ):
        return None
    net = task.net(recipe)
    names = linear_layers(net.body)
    numbers = sum(p.numel() for p in net.trainable().values())
    return Perceptron((*names, "head"), numbers) if names is not None and is_linear(net.head) else None


def linear_layers(body: nn.Module) -> tuple[str, ...] | None:
    """The names of the body's linear layers, if each is followed by a ReLU and there is nothing else."""
    graph = traced(body, training=True)
    if graph is None:
        return None
    names: list[str] = []
    waits = False  # for the ReLU of the last linear layer
    before = None
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            before = node if node.op == "placeholder" else before
            continue
        if node.op != "call_module" or node.args != (before,) or node.kwargs:
            return None
        layer, before = body.get_submodule(str(node.target)), node
        name = f"body.{node.target}"
        if type(layer) is nn.Linear and not waits and name not in names:
            names.append(name)
            waits = True
        elif type(layer) is nn.ReLU and waits:
            waits = False
        elif not is_shapeless(layer):
            return None
    return None if waits else tuple(names)


def is_shapeless(layer: nn.Module) -> bool:
    """Whether the layer leaves a sample's numbers as they are."""
    return type(layer) is nn.Identity or (type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1))


def is_linear(head: nn.Module) -> bool:
    """Whether the head is z = W h + b and no more."""
    plain = type(head) is Head and head.feat == "id" and not head.scaled and head.power is None
    return plain and not (head.wnorm == "unit" and head.weights == "trainable")


def train_perceptrons(
    recipe: Recipe, task: Task, cast: Broadcast, units: Sequence[Sequence[Client]], net: Perceptron,
    empty: Callable[[int], Tensor] = torch.empty, threads: int = 1,
) -> Answers:  # fmt: skip
    """One round of these clients, in one call; one bundle of reports for each unit.

    `empty`: memory for so many floats, where the caller wants the parameters.
    """
    clients = [client for unit in units for client in unit]
    done = trained(recipe, task, cast, clients, net, "train", empty, threads)
    ids, w, table = [client.id for client in clients], done.w, done.table
    places = [place for place in table.places if place[1] < table.shared]
    bundles: list[Part] = []
    for a, b in pairwise(accumulate(map(len, units), initial=0)):
        up = Rows(w[a:b, : table.shared], places)
        bundles.append(Bundle(ids[a:b], done.sizes[a:b], done.steps[a:b], done.losses[a:b], [up]))
    return bundles, table.states(w, clients)


def personalised(
    recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client], net: Perceptron, threads: int = 1
) -> Iterator[Tensor]:
    """Each client's logits of its own test data after one more local training, [n, C]."""
    done = trained(recipe, task, cast, clients, net, "personal", torch.empty, threads)
    own = task.working_net(recipe)
    for client, row in zip(clients, done.w, strict=True):
        params, x = done.table.cut(row), task.test(client.id)[0]
        h = own.inputs(x).reshape(len(x), -1)
        for name in net.linear:
            z = F.linear(h, params[f"{name}.weight"], params.get(f"{name}.bias"))
            h = z.relu()
        yield z


@dataclass(frozen=True)
class Trained:
    """Clients after local training: their parameters as rows, [M, P], and what else a report holds."""

    w: Tensor
    table: Table
    sizes: list[int]
    steps: list[int]
    losses: list[float]


def trained(
    recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client], net: Perceptron, purpose: str,
    empty: Callable[[int], Tensor], threads: int,
) -> Trained:  # fmt: skip
    """Local training of these clients; `purpose` names the random streams of their samples' order."""
    (phase,), lr = recipe.local_phases(task.epochs), task.lr(cast.round)
    own = task.working_net(recipe)
    table = kept(task, f"table {recipe}", lambda: Table.of(recipe, own))
    ids = [client.id for client in clients]
    x, y, rows, sizes = task.data.together(ids)
    w, start = table.first(cast, clients, own, empty)
    flat = rows[torch.arange(rows.shape[1]) < torch.tensor(sizes)[:, None]]
    samples = own.inputs(x.index_select(0, flat)).reshape(len(flat), -1).contiguous()
    layers = [table.layer(name, own, phase, task, lr) for name in net.linear]
    losses = mlp.train(
        layers, w, start, samples, y.index_select(0, flat), torch.tensor(sizes),
        orders(task, purpose, cast.round, ids, sizes), task.batch_size, phase.epochs, threads,
    )  # fmt: skip
    steps = {n: batch_plan(task, own, phase, n).steps for n in set(sizes)}
    return Trained(w, table, sizes, [steps[n] for n in sizes], losses.tolist())


def orders(task: Task, purpose: str, t: int, ids: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The positions of each client's samples in the order of each epoch; a single batch keeps its order."""
    as_they_are, found = torch.arange(task.batch_size), []
    for k, n in zip(ids, sizes, strict=True):
        if n <= task.batch_size:
            found += [as_they_are[:n]] * task.epochs
        else:
            rng = stream(task.seed, purpose, t, k)
            found += [torch.randperm(n, generator=rng) for _ in range(task.epochs)]
    return torch.cat(found)


@dataclass(frozen=True)
class Table:
    """Where each tensor stands in a client's row: shared parameters, then personal ones, then fixed ones."""

    places: tuple[Place, ...]
    shared: int  # columns of the shared parameters
    kept: int  # and of the personal ones; fixed tensors follow

    @classmethod
    def of(cls, recipe: Recipe, net: Net) -> Table:
        params, fixed = net.trainable(), {f"head.{k}": v for k, v in net.head.named_buffers()}
        ordered = sorted(params, key=lambda name: not recipe.share(name))  # stable: names keep their order
        places, at, shared, kept = [], 0, 0, 0
        for name, value in (*((name, params[name]) for name in ordered), *fixed.items()):
            places.append((name, at, tuple(value.shape)))
            at += value.numel()
            shared = at if name in params and recipe.share(name) else shared
            kept = at if name in params else kept
        return cls(tuple(places), shared, kept)

    def first(
        self, cast: Broadcast, clients: Sequence[Client], net: Net, empty: Callable[[int], Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        """Memory for the clients' rows, and the row that all begin with; None where they differ and stand there."""
        fixed = {f"head.{name}": v for name, v in net.head.named_buffers()}
        own = {name for name, at, _ in self.places if self.shared <= at < self.kept}
        values = [(cast.w | fixed)[name] if name not in own else net.trainable()[name] for name, _, _ in self.places]
        start = torch.cat([v.detach().reshape(-1) for v in values])
        memory = empty(len(clients) * len(start) + mlp.PADDING)
        w = memory[: len(clients) * len(start)].view(len(clients), len(start))
        if not own:
            return w, start
        w.copy_(start.expand_as(w))
        for name, at, shape in self.places:
            if name in own:
                w[:, at : at + prod(shape)] = torch.stack([c.personal[name].reshape(-1) for c in clients])
        return w, None

    def layer(self, name: str, net: Net, phase: Phase, task: Task, lr: float) -> mlp.Layer:
        """A linear layer with the moves of its weight and bias."""
        begins = {place: at for place, at, _ in self.places}
        shapes = {place: shape for place, _, shape in self.places}
        plain, trained = task_step(task, lr), net.trainable()

        def move(place: str) -> mlp.Move:
            if place not in trained or not phase.trains(place):
                return mlp.STAYS
            step = phase.step(plain, place)
            return mlp.Move(step.rate, step.momentum, step.decay)

        w, b = f"{name}.weight", f"{name}.bias"
        outputs, inputs = shapes[w]
        return mlp.Layer(inputs, outputs, begins[w], begins.get(b, -1), move(w), move(b) if b in begins else mlp.STAYS)

    def cut(self, row: Tensor) -> dict[str, Tensor]:
        """The tensors of a client by name."""
        return {name: row[at : at + prod(shape)].view(shape) for name, at, shape in self.places}

    def states(self, w: Tensor, clients: Sequence[Client]) -> list[Client]:
        """The clients' new states, where they keep something."""
        if self.shared == self.kept and not any(any(c.kept.values()) for c in clients):
            return []
        own = [(name, at, shape) for name, at, shape in self.places if self.shared <= at < self.kept]
        return [
            Client(c.id, Tree({n: row[at : at + prod(s)].view(s).clone() for n, at, s in own}), c.kept)
            for c, row in zip(clients, w, strict=True)
        ]
