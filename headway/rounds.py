"""The loop: begin, run_round, run, finish. It is FedAvg; a recipe says what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from headway.local import Phase, in_body
from headway.models.net import Net
from headway.recipes import Recipe
from headway.state import Broadcast, Report, Server, nbytes
from headway.tree import mean, stream

if TYPE_CHECKING:
    from headway.engine.local import Engine
    from headway.engine.store import ClientStore
    from headway.task import Task


class Watcher(Protocol):
    """Looks at the server and the reports after a round; never changes them."""

    def __call__(self, server: Server, cast: Broadcast, reports: Sequence[Report]) -> None: ...


def cast_of(server: Server, recipe: Recipe) -> Broadcast:
    """What every client of this round receives."""
    shared, stats = server.w.only(recipe.share), server.stats.only(recipe.share)
    return Broadcast(server.round, shared, stats, recipe.broadcast(server.kept))


def shown_of(server: Server, recipe: Recipe) -> Server:
    """The server with the parameters it would predict with."""
    return replace(server, w=server.w | recipe.shown(server.w.only(recipe.share), server.kept))


def run_round(server: Server, recipe: Recipe, task: Task, engine: Engine) -> tuple[Server, Broadcast, list[Report]]:
    # select -> broadcast -> local training -> report
    chosen = task.everyone() if recipe.trains_everyone else task.sampling(server.round)
    cast = cast_of(server, recipe)
    reports = engine.train(recipe, task, cast, chosen)
    reports = sorted(reports, key=lambda r: r.client)  # a sum must not depend on who answered first

    # aggregate -> server step
    with torch.no_grad():
        p = task.weights(reports)
        w = recipe.aggregate(cast.w, reports, p)
        kept = recipe.absorb(server.kept, reports, num_clients=len(task.data))
        w, kept = recipe.server_step(cast.w, w, kept)
        w = recipe.post(w, reports)
        stats = mean([r.stats for r in reports], p)
    engine.commit()  # the round is whole: what the clients remember of it becomes theirs
    return Server(server.round + 1, server.w | w, server.stats | stats, kept), cast, reports


def begin(recipe: Recipe, task: Task) -> Server:
    """Round 0: the global model and the server's first notes. Clients come into being when they first take part."""
    recipe.check(recipe, task.dim, task.classes)
    return first_server(recipe, task)


def first_server(recipe: Recipe, task: Task) -> Server:
    """The server before any round, whether or not the recipe would be let run."""
    net = task.net(recipe)
    w = net.params().copy()
    kept = recipe.init_server(w.only(recipe.share), task.dim, task.classes)
    for p in (p for p in recipe.pieces if p.holds):
        kept[p.name] = kept.get(p.name, {}) | {note: net.frozen()[name] for note, name in p.holds.items()}
    return Server(0, w, net.stats(), kept)


def run(
    recipe: Recipe,
    task: Task,
    engine: Engine,
    rounds: int,
    server: Server | None = None,
    watchers: Sequence[Watcher] = (),
    stop: Callable[[], bool] = lambda: False,
) -> Server:
    """All rounds, from the start or from a checkpoint; watchers look and never touch."""
    server = server or begin(recipe, task)
    while server.round < rounds and not stop():
        server, cast, reports = run_round(server, recipe, task, engine)
        for watch in watchers:
            watch(server, cast, reports)  # evaluation, checkpoint, progress
    return server


def global_net(server: Server, recipe: Recipe, task: Task, iterate: bool = False) -> Net:
    """The global model, ready to predict; `iterate`: the one training goes on from, where that is another."""
    shown = server if iterate else shown_of(server, recipe)
    sent = recipe.broadcast(server.kept)
    return task.net(recipe).load(shown.w, shown.stats, recipe.equip(sent, None)).eval()


def calibration_start(server: Server, recipe: Recipe, store: ClientStore) -> Server:
    """What a calibration begins with: the server's model, or the mean of personal tensors where the piece says so."""
    asks = getattr(recipe.decider("calibrate"), "global_head", "server")
    return with_mean_of_personal(server, store) if asks == "mean_of_personal" else server


def finish(server: Server, recipe: Recipe, task: Task, engine: Engine, sizes: list[int] | None = None) -> Net:
    """After the last round: survey every client, calibrate a copy of the global model; `sizes` gets bytes a survey."""
    net = global_net(calibration_start(server, recipe, engine.store), recipe, task)
    if not recipe.acting("calibrate"):
        return net

    def weighed() -> Iterator[dict[str, Any]]:
        for survey in engine.survey(recipe, task, net):
            if sizes is not None:
                sizes.append(nbytes(survey))
            yield survey

    return recipe.calibrate(net, weighed(), stream(task.seed, "finish")).eval()


def personal_phases(recipe: Recipe, task: Task) -> list[Phase]:
    """What makes the global model a client's own after the last round.

    A piece that personalises decides; a client that keeps parameters of its own is personal already; for all other
    recipes it is one more local training, the papers' usual reading.
    """
    if recipe.acting("personalise"):
        return recipe.personalise(task.epochs, task.lr(0))
    as_received = any(p.personal_as_received for p in recipe.pieces)
    return [] if as_received or has_own_model(recipe, task) else recipe.phases(task.epochs)


def has_own_model(recipe: Recipe, task: Task) -> bool:
    """Whether clients keep parameters, or a whole model, of their own."""
    kept_home = any(not recipe.share(name) for name in task.first_params(recipe))
    return kept_home or bool(recipe.acting("own_model"))


def has_global_model(recipe: Recipe, task: Task) -> bool:
    """Whether there is a global model to speak of: where no part of the body is shared, there is none."""
    names = list(task.first_params(recipe))
    body = [name for name in names if in_body(name)] or names  # a linear model is all classifier
    return any(recipe.share(name) for name in body)


def with_mean_of_personal(server: Server, store: ClientStore) -> Server:
    """The server with the plain average of what clients keep for themselves: a global head where none is trained.

    Clients are read one after another: all at once may not fit into memory.
    """
    ids = store.ids()
    shares = ((1 / len(ids)) * client.personal for k in ids if (client := store.get(k)) is not None)
    means = sum(shares)
    if not means:  # under one recipe either all clients keep something or none does
        return server
    w, stats = (tree | means.only(tree.__contains__) for tree in (server.w, server.stats))
    return replace(server, w=w, stats=stats)
