"""The local engine: it trains clients one after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.base.tree import Tree
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Client, Report
from headway.engines.store import ClientStore
from headway.metrics.accuracy import right_answers
from headway.models.net import Net, chunks
from headway.training.client import first_client, personal_net
from headway.training.cohort import cohorts, train_cohort
from headway.training.engine import PersonalResult, Tick

if TYPE_CHECKING:
    from headway.training.task import Task


class LocalEngine:
    """Trains clients one after another in this process. `tick` is called before each; it may raise to stop the work."""

    def __init__(self, store: ClientStore | None = None, tick: Tick | None = None) -> None:
        self.store = store or ClientStore()
        self.tick: Tick = tick or (lambda done, total: None)
        self._pending: list[Client] = []

    def client(self, recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
        return self.store.get(k) or first_client(recipe, task, cast, k)

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Report]:
        reports: list[Report] = []
        self._pending = []
        for together in cohorts(recipe, task, ids):
            self.tick(len(reports), len(ids))
            clients = [self.client(recipe, task, cast, k) for k in together]
            for report, client in train_cohort(recipe, task, cast, clients):
                reports.append(report)
                self._pending.append(client)
        self.tick(len(ids), len(ids))
        return reports

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
        for done, k in enumerate(ids):
            self.tick(done, len(ids))
            client = self.client(recipe, task, cast, k)
            yield evaluate_personal(recipe, task, cast, client, phases, keep, (known or {}).get(k))

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
    known: int | None = None,
) -> PersonalResult:  # fmt: skip
    """Personalise one client's model and evaluate it after each stage on the client's own test data.

    `known`: how many predictions are right before the first stage.
    """
    x, y = task.test(client.id)
    correct: dict[str, int] = {}
    tensors = Tree()
    for stage, net in personal_net(recipe, task, cast, client, phases, fresh=bool(phases)):
        received = known if not correct else None
        correct[stage] = int(right_answers(net, x, y, personal=True)[0].sum()) if received is None else received
        tensors = net.tensors() if keep else tensors
    return PersonalResult(client.id, len(y), correct, tensors)
