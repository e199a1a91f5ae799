"""The local engine: it trains clients in this process, one after another or as many at a time as native code takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.base.tree import Tree
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Part
from headway.core.state import Broadcast, Client
from headway.engines.store import ClientStore
from headway.metrics.accuracy import right_answers
from headway.models.net import Net, chunks
from headway.training.client import first_client, personal_net
from headway.training.cohort import cohorts, first_clients, in_calls, native_perceptron, train_cohort
from headway.training.engine import PersonalResult, Tick
from headway.training.perceptron import personalised, train_perceptrons

if TYPE_CHECKING:
    from headway.training.task import Task


PERSONAL_AT_ONCE = 64  # clients whose own models native code makes in one call


class LocalEngine:
    """Trains clients one after another in this process. `tick` is called before each; it may raise to stop the work."""

    def __init__(self, store: ClientStore | None = None, tick: Tick | None = None, threads: int = 1) -> None:
        self.store = store or ClientStore()
        self.tick: Tick = tick or (lambda done, total: None)
        self.threads = threads  # in which native code trains clients of a perceptron; they share memory
        self._pending: list[Client] = []

    def client(self, recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
        return self.store.get(k) or first_client(recipe, task, cast, k)

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Part]:
        reports: list[Part] = []
        self._pending, done, net = [], 0, native_perceptron(recipe, task)
        for units in in_calls(task, cohorts(recipe, task, ids)) if net else ([u] for u in cohorts(recipe, task, ids)):
            self.tick(done, len(ids))
            clients = [self.clients(recipe, task, cast, unit) for unit in units]
            if net:
                parts, states = train_perceptrons(recipe, task, cast, clients, net, threads=self.threads)
            else:
                parts, states = train_cohort(recipe, task, cast, clients[0])
            reports += parts
            self._pending += states
            done += sum(map(len, units))
        self.tick(len(ids), len(ids))
        return reports

    def clients(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Client]:
        """The clients' states; those that have not trained begin."""
        known = {k: client for k in ids if (client := self.store.get(k)) is not None}
        new = {c.id: c for c in first_clients(recipe, task, cast, [k for k in ids if k not in known])}
        return [known.get(k) or new[k] for k in ids]

    def commit(self) -> None:
        """Store the new client states; called once the round is complete, so an interrupted round changes nothing."""
        self.store.put(drained(self._pending))

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        """Yield the clients' results one at a time, so that the caller need not hold all of them in memory."""
        for k in range(len(task.data)):
            self.tick(k, len(task.data))
            if task.data.size(k):
                yield surveyed(recipe, task, net, k)

    def personal(
        self,
        recipe: Recipe,
        task: Task,
        cast: Broadcast,
        ids: Sequence[int],
        phases: Sequence[Phase],
        keep: bool,
        known: Mapping[int, int] | None = None,
    ) -> Iterator[PersonalResult]:
        for done in range(0, len(ids), PERSONAL_AT_ONCE):
            part = ids[done : done + PERSONAL_AT_ONCE]
            clients = self.clients(recipe, task, cast, part)
            own = personal_logits(recipe, task, cast, clients, phases, keep, self.threads)
            for at, client in enumerate(clients, done):
                self.tick(at, len(ids))
                yield evaluate_personal(recipe, task, cast, client, phases, keep, (known or {}).get(client.id), own)

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        """Right predictions of each client's model as it receives the broadcast. `tick` is not called."""
        clients = (self.client(recipe, task, cast, k) for k in ids)
        return {c.id: evaluate_personal(recipe, task, cast, c, [], False).last for c in clients}

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """Logits of the global test set, [N, C]; with `held_out`, of the clients' own test samples at these positions.

        The chunks are the same in every engine, so the logits are equal too.
        """
        net.eval()
        rows = samples_or_positions(task, held_out)
        return torch.cat([part_logits(task, net, part, held_out is not None) for part in chunks(rows)])[: len(rows)]

    @property
    def deaths(self) -> int:
        """Worker processes that died so far; this engine has none."""
        return 0

    def close(self) -> None:
        """There are no workers to end."""
        self.tick = lambda done, total: None  # the old one may refer to the run, which refers to this engine


def drained(clients: list[Client]) -> Iterator[Client]:
    """Yield the clients and empty the list, so that each can be freed as soon as it is written to disk."""
    clients.reverse()
    while clients:
        yield clients.pop()


def samples_or_positions(task: Task, held_out: Tensor | None) -> Tensor:
    """What `logits` cuts into chunks: the samples of the test set, or positions among the clients' own test samples."""
    return task.dataset.x_test if held_out is None else held_out


@torch.no_grad()
def part_logits(task: Task, net: Net, part: Tensor, own: bool) -> Tensor:
    """Logits of a chunk of the test set, [B, C]; with `own`, of positions among the clients' own test samples."""
    if not own:
        return net.logits_of(part.to(task.device))
    return net.logits_of(task.tests.x[part.to(task.tests.x.device)].to(task.device), personal=True)


@torch.no_grad()
def surveyed(recipe: Recipe, task: Task, net: Net, k: int) -> dict[str, Any]:
    """The result of the recipe's survey on client k's data."""
    return recipe.survey(net, *task.data[k])


def evaluate_personal(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, phases: Sequence[Phase], keep: bool,
    known: int | None = None, after: Iterator[Tensor] | None = None,
) -> PersonalResult:  # fmt: skip
    """Personalise one client's model and evaluate it after each stage on the client's own test data.

    `known`: how many predictions are right before the first stage. `after`: the logits after it, if they are known.
    """
    x, y = task.test(client.id)
    correct: dict[str, int] = {}
    tensors = Tree()
    if after is None:
        after = personal_logits(recipe, task, cast, [client], phases, keep)
    begin = [] if after is not None else phases
    for stage, net in personal_net(recipe, task, cast, client, begin, fresh=bool(begin)):
        received = known if not correct else None
        correct[stage] = int(right_answers(net, x, y, personal=True)[0].sum()) if received is None else received
        tensors = net.tensors() if keep else tensors
    if after is not None:
        correct[phases[0].stage or "phase 1"] = int((next(after).argmax(1) == y).sum())
    return PersonalResult(client.id, len(y), correct, tensors)


def personal_logits(
    recipe: Recipe, task: Task, cast: Broadcast, clients: Sequence[Client], phases: Sequence[Phase], keep: bool,
    threads: int = 1,
) -> Iterator[Tensor] | None:  # fmt: skip
    """The logits of each client's own model where native code makes it: by the recipe's own local training."""
    net = native_perceptron(recipe, task) if phases and not keep and not recipe.acting("personalise") else None
    return None if net is None else personalised(recipe, task, cast, clients, net, threads)
