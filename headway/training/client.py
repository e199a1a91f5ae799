"""Training and personalisation of one client, as pure functions; engines decide where they run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.base.tree import Tree
from headway.core.local import Local
from headway.core.phase import Phase
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Client, Note, Report
from headway.models.net import Net
from headway.training.loop import named_randomness, run_phase
from headway.training.step_counts import batch_plan, gradient_weights
from headway.training.task import Task

UPLOAD = "w"  # a tree that a piece sends under this name replaces the shared parameters in the report


def first_client(recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
    """The state of a client that has not trained yet: first values of its personal tensors, first notes."""
    return Client(k, task.first_personal(recipe), recipe.init_client(cast.w))


def equipped(recipe: Recipe, task: Task, cast: Broadcast, client: Client, y: Tensor, fresh: bool = True) -> Net:
    """The client's net after it has received the broadcast; `fresh`: a new net instead of the reused one."""
    net = task.net(recipe) if fresh else task.working_net(recipe).load(task.first_local_buffers(recipe))
    net.load(cast.w, client.personal, cast.stats)
    if recipe.acting("equip"):
        net.load(recipe.equip(cast.sent, torch.bincount(y, minlength=task.classes)))
    return net


def train_client(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, own_memory: bool = True
) -> tuple[Report, Client]:
    """One client's round: its report and its new state; a pure function of its arguments.

    With `own_memory` the result shares no memory with the net, in which the next client trains. A caller that copies
    the result at once may turn it off.
    """
    x, y = task.data[client.id]
    net = equipped(recipe, task, cast, client, y, fresh=False)
    phases, lr = recipe.local_phases(task.epochs), task.lr(cast.round)
    plan = [batch_plan(task, net, phase, len(y)) for phase in phases]
    local = Local(
        net, cast.w, x, y, cast.round, lr, recipe.share, kept=client.kept, sent=cast.sent,
        step_weights=partial(gradient_weights, task, net, phases, plan, recipe, lr),
        fit=partial(fit, recipe, task, cast, client.id, net),
    )  # fmt: skip
    local = local.prepared(recipe.prepare(local))

    momentum, loss, last_epoch, features = Tree(), math.nan, None, None
    with named_randomness(task, "train", cast.round, client.id) as rng:
        for phase, sizes in zip(phases, plan, strict=True):
            trained = run_phase(recipe, task, local, phase, sizes, rng, client.momentum, features)
            momentum, loss, last_epoch = momentum | trained.momentum, trained.loss, trained.last_epoch
            features = trained.features

    local = local.trained(last_epoch)
    w, stats = net.params(), net.stats()
    w = w.map(lambda v: v.detach().contiguous())  # so that sums over w do not depend on the net's memory layout
    w = w.copy() if own_memory else w
    with torch.no_grad():
        send, keep, up = reported(recipe, w.only(recipe.share), local)
    if own_memory:
        send, keep, up = detached_from(net, [send, keep, up])
    report = Report(client.id, len(y), sum(s.steps for s in plan), up, stats.only(recipe.share), send, loss)
    personal = (w | stats).only(lambda name: not recipe.share(name))
    return report, Client(client.id, personal, keep, momentum if task.persist_momentum else Tree())


def reported(recipe: Recipe, shared: Tree, local: Local) -> tuple[dict[str, Note], dict[str, Note], Tree]:
    """What the pieces send, what they keep, and the parameters for the report."""
    answers: dict[str, tuple[Note, Note]] = recipe.report(shared, local)  # type: ignore[assignment]
    send = {name: dict(message) for name, (message, _) in answers.items()}
    keep = {**local.kept, **{name: note for name, (_, note) in answers.items()}}
    up = shared
    for message in send.values():
        up = message.pop(UPLOAD, up)
    return {k: v for k, v in send.items() if v}, {k: v for k, v in keep.items() if v}, up


def detached_from(net: Net, value: Any) -> Any:
    """The value with copies of the tensors that share memory with the net, in which the next client trains."""
    parts = net.parts()
    own = {t.untyped_storage().data_ptr() for t in (*parts.params.values(), *parts.buffers.values())}

    def detached(v: Any) -> Any:
        if isinstance(v, Tensor):
            return v.detach().clone() if v.untyped_storage().data_ptr() in own else v
        if isinstance(v, dict):
            return type(v)({key: detached(part) for key, part in v.items()})
        return [detached(part) for part in v] if isinstance(v, list) else v

    return detached(value)


def fit(recipe: Recipe, task: Task, cast: Broadcast, k: int, net: Net, start: Tree, under: Piece) -> Tree:
    """A second model trained on the client's data from `start`, with the recipe's loss piece and the piece `under`."""
    x, y = task.data[k]
    second = copy.deepcopy(net).load(cast.stats, start)
    alone = Recipe((*(p for p in recipe.pieces if p.slot == "loss"), under))
    local = Local(second, cast.w, x, y, cast.round, task.lr(cast.round), recipe.share, {}, {})
    local = local.prepared(alone.prepare(local))
    with torch.enable_grad(), named_randomness(task, "second model", cast.round, k) as rng:
        for phase in alone.local_phases(task.epochs):
            run_phase(alone, task, local, phase, batch_plan(task, second, phase, len(y)), rng, Tree())
    return second.params().copy() | second.stats()


def personal_net(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, phases: Sequence[Phase], fresh: bool = True
) -> Iterator[tuple[str, Net]]:
    """The client's own model: yields (stage, net), first as received, then after each phase of personalisation.

    A caller that uses the net only before the next client trains may get the reused one (`fresh=False`).
    """
    x, y = task.data[client.id]
    net = equipped(recipe, task, cast, client, y, fresh)
    if recipe.acting("evaluated"):
        net.load(recipe.evaluated(cast.w, client.kept))
    yield "received", net.eval()
    if not phases or not len(y):
        return
    net.thaw(lambda name: any(phase.thaws(name) for phase in phases))
    local = Local(net, cast.w, x, y, cast.round, task.lr(cast.round), recipe.share, client.kept, cast.sent)
    local = local.prepared(recipe.prepare(local))
    features = None
    with named_randomness(task, "personal", cast.round, client.id) as rng:
        for number, phase in enumerate(phases):
            plan = batch_plan(task, net, phase, len(y))
            features = run_phase(recipe, task, local, phase, plan, rng, Tree(), features).features
            yield phase.stage or f"phase {number + 1}", net.eval()
