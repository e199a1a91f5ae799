"""What rounds, metrics and runs need of an engine: the protocol that `headway.engines` fulfils."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headway.base.lazy import Tensor
from headway.base.tree import Tree
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Part
from headway.core.state import Broadcast, Client
from headway.models.net import Net

if TYPE_CHECKING:
    from headway.training.task import Task

Tick = Callable[[int, int], None]  # (clients done, clients in all); it may raise to stop the work
Say = Callable[[str], None]  # prints one sentence for the user


@dataclass(frozen=True)
class PersonalResult:
    """Results of one client's own model on its own test data, after each stage of personalisation."""

    client: int
    n: int  # local test samples
    correct: dict[str, int]  # stage -> right predictions; the first is the model as received
    tensors: Tree  # the model, when asked for

    @property
    def last(self) -> int:
        """Right predictions after the last stage."""
        return list(self.correct.values())[-1]


class Store(Protocol):
    """The states of clients, by id. A client without a state is not in it."""

    changed: set[int]  # clients stored since the last checkpoint

    def ids(self) -> list[int]:
        """The clients that have a state, in ascending order."""

    def __contains__(self, k: int) -> bool:
        """Whether client k has a state; reads nothing from disk."""

    def get(self, k: int) -> Client | None:
        """Client k, or None if it has no state."""

    def put(self, clients: Iterable[Client]) -> None:
        """Store these clients, one after another."""


class Engine(Protocol):
    """Runs clients. An engine depends on no method."""

    @property
    def store(self) -> Store:
        """The states of clients."""

    @property
    def deaths(self) -> int:
        """Worker processes that died so far."""

    @property
    def tick(self) -> Tick:
        """Called before each client."""

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Part]:
        """One round of local training of these clients, reports in any order. Their new states wait for `commit`."""

    def commit(self) -> None:
        """Store the states of the clients that trained last; called once the round is complete."""

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        """The recipe's survey of every client that has data, in the order of the clients."""

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        """Right predictions of each client's model as it receives the broadcast."""

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
        """Personalise these clients' models by `phases` and evaluate each; `keep`: with the model's tensors.

        `known`: right predictions of models as received that need not be computed again.
        """

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """The net on the global test set, or on these positions among the clients' own test samples, [N, C]."""

    def close(self) -> None:
        """End the workers and free what they shared."""
