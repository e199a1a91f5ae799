"""The local engine: clients one after another, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from headway.client import first_client, personal_net, train_client
from headway.diagnostics.accuracy import right_answers
from headway.engine.store import ClientStore
from headway.local import Phase
from headway.models.net import Net, chunks
from headway.recipes import Recipe
from headway.state import Broadcast, Client, Report
from headway.tree import Tree

if TYPE_CHECKING:
    from headway.task import Task


@dataclass(frozen=True)
class PersonalResult:
    """How one client's own model does on its own test data, after each stage of personalisation."""

    client: int
    n: int  # local test examples
    correct: dict[str, int]  # stage -> right predictions; the first is the model as received
    tensors: Tree  # the model, when asked for

    @property
    def last(self) -> int:
        return list(self.correct.values())[-1]


class Engine(Protocol):
    """What the loop asks of whoever runs clients."""

    store: ClientStore

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Report]: ...
    def commit(self) -> None: ...
    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor: ...
    def close(self) -> None: ...
    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]: ...
    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]: ...
    def personal(
        self,
        recipe: Recipe,
        task: Task,
        cast: Broadcast,
        ids: Sequence[int],
        phases: Sequence[Phase],
        keep: bool,
    ) -> Iterator[PersonalResult]: ...


class LocalEngine:
    """Clients one after another in this process. `tick` is called before each: it may raise to stop the work."""

    def __init__(self, store: ClientStore | None = None, tick: Callable[[int, int], None] | None = None) -> None:
        self.store = store or ClientStore()
        self.tick = tick or (lambda done, total: None)
        self._pending: list[Client] = []

    def client(self, recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
        return self.store.get(k) or first_client(recipe, task, cast, k)

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Report]:
        reports, self._pending = [], []
        for done, k in enumerate(ids):
            self.tick(done, len(ids))
            report, client = train_client(recipe, task, cast, self.client(recipe, task, cast, k))
            reports.append(report)
            self._pending.append(client)
        self.tick(len(ids), len(ids))
        return reports

    def commit(self) -> None:
        """The round is whole: only now do clients remember it, so a round cut short leaves no trace."""
        self.store.put(drained(self._pending))

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        """One client's answer after another: whoever pools them need not hold them all."""
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
    ) -> Iterator[PersonalResult]:
        for done, k in enumerate(ids):
            self.tick(done, len(ids))
            yield evaluate_personal(recipe, task, cast, self.client(recipe, task, cast, k), phases, keep)

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        """Right answers of clients' own models as they stand on receiving a broadcast; not to be stopped half-way."""
        clients = (self.client(recipe, task, cast, k) for k in ids)
        return {c.id: evaluate_personal(recipe, task, cast, c, [], False).last for c in clients}

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """The net's answers to the global test set, [N, C]; in fixed chunks, so that they never depend on who asks.

        Or to the clients' own test samples at these positions, as the clients would predict them.
        """
        net.eval()
        rows = asked(task, held_out)
        return torch.cat([part_logits(task, net, part, held_out is not None) for part in chunks(rows)])[: len(rows)]

    @property
    def deaths(self) -> int:
        """Workers that died with a client in their hands; there are none here."""
        return 0

    def close(self) -> None:
        """Nothing to end here, and nobody to tell any more: who ticks may be the run, which holds the engine."""
        self.tick = lambda done, total: None


def drained(clients: list[Client]) -> Iterator[Client]:
    """One after another, each out of the list as it is given: whoever writes it to disk may free it at once."""
    clients.reverse()
    while clients:
        yield clients.pop()


def asked(task: Task, held_out: Tensor | None) -> Tensor:
    """What is cut into chunks: the test set, or positions among the clients' own."""
    return task.dataset.x_test if held_out is None else held_out


@torch.no_grad()
def part_logits(task: Task, net: Net, part: Tensor, own: bool) -> Tensor:
    """Answers to one chunk, [B, C]: of the test set, or of positions among the clients' own samples."""
    if not own:
        return net(part.to(task.device))
    return net.personal(task.tests.x[part.to(task.tests.x.device)].to(task.device))


@torch.no_grad()
def surveyed(recipe: Recipe, task: Task, net: Net, k: int) -> dict[str, Any]:
    """One client's answer to the survey."""
    return recipe.survey(net, *task.data[k])


def evaluate_personal(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, phases: Sequence[Phase], keep: bool
) -> PersonalResult:
    """One client's own model through its stages, each on the client's own test data."""
    x, y = task.test(client.id)
    correct: dict[str, int] = {}
    tensors = Tree()
    for stage, net in personal_net(recipe, task, cast, client, phases, fresh=bool(phases)):
        correct[stage] = int(right_answers(net, x, y, personal=True)[0].sum())
        tensors = net.tensors() if keep else tensors
    return PersonalResult(client.id, len(y), correct, tensors)
