"""The rounds: begin, run_round, run, finish. They are FedAvg; a recipe's hooks say what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from headway.base.names import in_body
from headway.base.tree import stream
from headway.core import compatibility
from headway.core.arrived import Arrived
from headway.core.compatibility import Setup, two_headed
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Reports
from headway.core.state import Broadcast, Server, nbytes
from headway.models.net import Net
from headway.training.engine import Engine, Store
from headway.training.task import Task


class Watcher(Protocol):
    """A function that is called with the server and the reports after each round; it must not change them."""

    def __call__(self, server: Server, cast: Broadcast, reports: Reports) -> None: ...


def cast_of(server: Server, recipe: Recipe) -> Broadcast:
    """What every client of this round receives."""
    shared, stats = server.w.only(recipe.share), server.stats.only(recipe.share)
    return Broadcast(server.round, shared, stats, recipe.broadcast(server.kept))


def predicting(server: Server, recipe: Recipe) -> Server:
    """The server with the parameters that are used for prediction."""
    return replace(server, w=server.w | recipe.evaluated(server.w.only(recipe.share), server.kept))


def run_round(server: Server, recipe: Recipe, task: Task, engine: Engine) -> tuple[Server, Broadcast, Reports]:
    """select -> broadcast -> local training -> report -> aggregate -> server step."""
    chosen = task.everyone() if recipe.trains_everyone else task.sampling(server.round)
    cast = cast_of(server, recipe)
    reports = Reports.of(engine.train(recipe, task, cast, chosen))  # ordered: no sum depends on the order of arrival
    after = combined(server, cast, reports, recipe, task)
    engine.commit()  # the round is complete: the new states of its clients are stored
    return after, cast, reports


@torch.no_grad()
def combined(server: Server, cast: Broadcast, reports: Reports, recipe: Recipe, task: Task) -> Server:
    """The server after a round: its new parameters, statistics and notes."""
    p, t = task.weights(reports), server.round
    arrived = Arrived(cast.w, reports, p, num_clients=len(task.data), round=t, lr=task.lr(t), kept=server.kept)
    arrived = replace(arrived, w_new=recipe.aggregate(arrived))
    arrived = replace(arrived, kept=server.kept | recipe.absorb(arrived))
    w = recipe.server_step(arrived.w_new, arrived)
    return Server(t + 1, server.w | w, server.stats | reports.mean_stats(p), arrived.kept)


def begin(recipe: Recipe, task: Task) -> Server:
    """The server before round 0, after a check of the recipe. Client states are made when clients first train."""
    compatibility.check(Setup(recipe, task.dim, task.classes))  # a run also checks the settings, by `setup_of`
    return first_server(recipe, task)


def setup_of(recipe: Recipe, task: Task) -> Setup:
    """The model's size and the settings against which the recipe is checked."""
    s = task.settings
    return Setup(recipe, task.dim, task.classes, s.rounds, s.lr, s.persist_momentum, s.personal_from)


def first_server(recipe: Recipe, task: Task) -> Server:
    """The server before round 0, without a check of the recipe."""
    net = task.net(recipe)
    w = net.params().copy()
    return Server(0, w, net.stats(), recipe.init_server(w.only(recipe.share), net))


def run(
    recipe: Recipe,
    task: Task,
    engine: Engine,
    rounds: int,
    server: Server | None = None,
    watchers: Sequence[Watcher] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Server:
    """All rounds, from the start or from the server of a checkpoint; watchers are called after each."""
    server = server or begin(recipe, task)
    while server.round < rounds and not stop():
        server, cast, reports = run_round(server, recipe, task, engine)
        for watch in watchers:
            watch(server, cast, reports)  # evaluation, checkpoints, progress
    return server


def global_net(server: Server, recipe: Recipe, task: Task, iterate: bool = False) -> Net:
    """The global model in eval mode; `iterate`: the one that training continues from, where the two differ."""
    chosen = server if iterate else predicting(server, recipe)
    sent = recipe.broadcast(server.kept)
    return task.net(recipe).load(chosen.w, chosen.stats, recipe.equip(sent, None)).eval()


def calibration_start(server: Server, recipe: Recipe, store: Store) -> Server:
    """The server that a calibration starts from; with the mean of personal tensors if a piece requires it."""
    return with_mean_of_personal(server, store) if "mean of personal tensors" in recipe.requires() else server


def finish(server: Server, recipe: Recipe, task: Task, engine: Engine, sizes: list[int] | None = None) -> Net:
    """After the last round: survey every client and calibrate a copy of the global model.

    The size of each survey in bytes is appended to `sizes`.
    """
    net = global_net(calibration_start(server, recipe, engine.store), recipe, task)
    if not recipe.acting("calibrate"):
        return net

    def surveys() -> Iterator[dict[str, Any]]:
        for survey in engine.survey(recipe, task, net):
            if sizes is not None:
                sizes.append(nbytes(survey))
            yield survey

    return recipe.calibrate(net, surveys(), stream(task.seed, "finish")).eval()


def personal_phases(recipe: Recipe, task: Task) -> list[Phase]:
    """The phases by which each client personalises the global model after the last round.

    A piece with a `personalise` hook decides. Clients with parameters or a second model of their own need no phase.
    For all other recipes it is one more local training, as most papers do it.
    """
    if recipe.acting("personalise"):
        return recipe.personalise(task.epochs, task.lr(0))
    own = has_own_model(recipe, task) or two_headed(recipe)
    return [] if own else recipe.local_phases(task.epochs)


def has_own_model(recipe: Recipe, task: Task) -> bool:
    """Whether clients keep parameters, or a whole model, of their own."""
    kept_home = any(not recipe.share(name) for name in task.first_params(recipe))
    return kept_home or "own model" in recipe.provides()


def has_global_model(recipe: Recipe, task: Task) -> bool:
    """Whether there is a global model; there is none if no part of the body is shared."""
    names = list(task.first_params(recipe))
    body = [name for name in names if in_body(name)] or names  # a linear model is all classifier
    return any(recipe.share(name) for name in body)


def with_mean_of_personal(server: Server, store: Store) -> Server:
    """The server with the unweighted mean of the clients' personal tensors, such as a head that is not shared.

    Clients are read one at a time, as all together may not fit into memory.
    """
    ids = store.ids()
    shares = ((1 / len(ids)) * client.personal for k in ids if (client := store.get(k)) is not None)
    means = sum(shares)
    if not means:  # no client keeps personal tensors: a recipe decides this for all of them
        return server
    w, stats = (tree | means.only(tree.__contains__) for tree in (server.w, server.stats))
    return replace(server, w=w, stats=stats)
