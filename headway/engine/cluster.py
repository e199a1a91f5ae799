"""The Ray engine: the same client function on the workers of a cluster.

Workers build the task from its text and hold a net; clients' samples rest in the object store of the nodes that train
them (shards.py). A worker remembers nothing of a client: what clients remember rests with the run, so a worker may die
at any moment. Its client is trained again, from the same state and the same random streams, to the same bits.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.engine.local import LocalEngine, PersonalResult, asked
from headway.engine.remote import Hand, Parcel, order_of
from headway.engine.session import Session, first_line
from headway.engine.shards import Shards
from headway.engine.store import ClientStore
from headway.engine.transport import from_array, to_array
from headway.errors import EngineError, HeadwayError
from headway.local import Phase
from headway.machine import cores
from headway.models.net import Net, chunks
from headway.recipes import Recipe
from headway.state import Broadcast, Client, Report

if TYPE_CHECKING:
    from headway.task import Task

MOST_DEATHS = 3  # workers one client may take with it before the run stops
PLACE_SECONDS = 120.0  # for a first worker to find room on the cluster and build the task
WAIT_SECONDS = 0.5  # between two looks at whether the run was asked to stop
LOOK_AHEAD = 64  # how far down the queue a worker looks for a client whose samples rest where it is

Say = Callable[[str], None]
Tick = Callable[[int, int], None]


@dataclass(eq=False)
class Member:
    """One worker, as the run sees it."""

    actor: Any
    pid: int = 0
    node: str = ""


class Crew:
    """Workers of one kind. They take one piece of work after another; one that dies is replaced."""

    def __init__(self, session: Session, kind: type, order: Any, count: int, device: str, threads: int, say: Say):
        self.ray, self.say, self.deaths = session.ray, say, 0
        self._order = json.dumps(order)
        needs = {"num_cpus": threads, "num_gpus": 1 if device == "cuda" else 0}
        self._kind = self.ray.remote(kind).options(**needs, max_restarts=0, scheduling_strategy="SPREAD")
        self._room = f"{threads} CPU" + (" and one GPU" if device == "cuda" else "")
        self._idle: list[Member] = []
        self._waking: dict[Any, Member] = {}  # what a worker will answer when it is ready -> the worker
        self._busy: dict[Any, tuple[Member, Any]] = {}  # what it will answer -> the worker, the key of its work
        self._stillborn = 0  # workers in a row that died before they were ready
        for _ in range(count):
            self._hire()

    @property
    def members(self) -> list[Member]:
        """The workers that are ready or at work."""
        return [*self._idle, *(member for member, _ in self._busy.values())]

    def gather(self) -> None:
        """Wait until the first worker is ready, or say in one sentence why none is."""
        since = time.monotonic()
        while not self.members:
            self._look(since)

    def spread(
        self,
        method: str,
        keys: Sequence[Any],
        args: Callable[[Any], tuple[Any, ...]],
        tick: Tick,
        what: str,
        homes: dict[Any, str] | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """(key, answer) as the answers come. A key whose worker dies is given to the next one.

        `homes` says on which node a key was last, and is kept up to date: a worker takes what rests on its node.
        """
        homes = {} if homes is None else homes
        queue, deaths, done = deque(keys), dict.fromkeys(keys, 0), 0
        since = time.monotonic()
        try:
            while queue or self._busy:
                while queue and self._idle:
                    key = self._fitting(self._idle[0].node, queue, homes)
                    given = args(key)  # before a worker is taken: this may fail, and nobody must be lost with it
                    member = self._idle.pop(0)
                    homes[key] = member.node
                    self._busy[getattr(member.actor, method).remote(*given)] = (member, key)
                since = time.monotonic() if self._busy else since
                tick(done, len(keys))
                for member, key, ref in self._look(since):
                    try:
                        answer = self._answer(ref)
                    except Death as death:
                        deaths[key] += 1
                        self._mourn(member, f"{what} {key}", death, deaths[key])
                        queue.appendleft(key)
                        continue
                    self._idle.append(member)
                    done += 1
                    yield key, answer
            tick(done, len(keys))
        finally:
            for member, _ in self._busy.values():  # the work was called off: nobody waits for its answers
                self.ray.kill(member.actor)
                self._hire()
            self._busy = {}

    def _fitting(self, node: str, queue: deque[Any], homes: dict[Any, str]) -> Any:
        """Take from the queue what rests on this node, else what rests nowhere, else whatever comes first."""
        near = list(islice(queue, LOOK_AHEAD))
        nodes = {member.node for member in self.members}
        here = (i for i, key in enumerate(near) if homes.get(key) == node)
        nowhere = (i for i, key in enumerate(near) if homes.get(key) not in nodes)
        at = next(here, next(nowhere, 0))
        key = queue[at]
        del queue[at]
        return key

    def close(self) -> None:
        """End every worker, also those that never found room: a CPU must not stay taken."""
        for member in [*self.members, *self._waking.values()]:
            self.ray.kill(member.actor)
        self._idle, self._waking, self._busy = [], {}, {}

    def _hire(self) -> None:
        member = Member(self._kind.remote(self._order))
        self._waking[member.actor.ready.remote()] = member

    def _look(self, since: float) -> list[tuple[Member, Any, Any]]:
        """Welcome workers that have become ready; give the work that has ended, for better or worse."""
        refs, _ = self.ray.wait([*self._busy, *self._waking], num_returns=1, timeout=WAIT_SECONDS)
        ended = []
        for ref in refs:
            if ref in self._waking:
                self._welcome(self._waking.pop(ref), ref)
            else:
                ended.append((*self._busy.pop(ref), ref))
        if not refs and not self.members and time.monotonic() - since > PLACE_SECONDS:
            raise EngineError(
                f"engine=ray: no worker found room in {PLACE_SECONDS:.0f} s; each needs {self._room} on one node: "
                f"free some, give fewer --workers or --threads, or add nodes"
            )
        return ended

    def _welcome(self, member: Member, ref: Any) -> None:
        try:
            who = json.loads(self._answer(ref))
        except Death as death:
            self._stillborn += not member.pid  # one that was looked after (`_mourn`) had been at work before
            if self._stillborn >= MOST_DEATHS:
                raise EngineError(
                    f"engine=ray: {self._stillborn} workers died as they started ({death}); see that every node has "
                    f"headway with the same versions, and memory to spare"
                ) from None
            self._hire()
            return
        if who["fault"]:
            raise EngineError(
                f"engine=ray: node {who['node']} cannot build this task: {who['fault']}; workers build the model from "
                f"its name, so every node needs the same versions, and the same files under the same names"
            )
        self._stillborn = 0
        member.pid, member.node = who["pid"], who["node"]
        self._idle.append(member)

    def _mourn(self, member: Member, work: str, death: Death, count: int) -> None:
        self.deaths += 1
        self.ray.kill(member.actor)  # its answer may be lost and not the worker, which must not keep its CPU
        for other in [one for one in self._idle if one.node == member.node]:  # the node may be gone with all of them
            self._idle.remove(other)
            self._waking[other.actor.present.remote()] = other
        if count >= MOST_DEATHS:
            raise EngineError(
                f"engine=ray: {work} ended {count} workers, the last on node {member.node} ({death}); the nodes may be "
                f"out of memory: give fewer --workers, then `headway resume` the run"
            )
        self.say(f"worker {member.pid} on node {member.node} died at {work}, which is given to another ({death})")
        self._hire()

    def _answer(self, ref: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(ref)
        except errors.RayTaskError as error:  # the work itself went wrong, as it would have here
            if isinstance(error.cause, HeadwayError):
                raise type(error.cause)(str(error.cause)) from None
            raise
        except errors.RayError as error:  # worker, node or stored answer lost
            raise Death(type(error).__name__) from None


class Death(Exception):
    """A worker, or its answer, is gone; the text is the kind of loss."""


class RayEngine(LocalEngine):
    """Clients on the workers of a cluster. One recipe, one task: workers are made with both."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        workers: int | None,
        *,
        address: str | None = None,
        store: ClientStore | None = None,
        tick: Tick | None = None,
        say: Say = lambda text: None,
    ) -> None:
        super().__init__(store, tick)
        self.recipe, self.task = recipe, task
        threads = torch.get_num_threads()
        busy = len(task.everyone() if recipe.trains_everyone else task.sampling(0))
        self._number = 0
        self._homes: dict[Any, str] = {}  # client -> the node that had it last, where its samples rest
        self.session = Session(address, cpus_for(workers, threads))
        self.shards = Shards(self._put, task)
        try:
            count = workers_for(self.session, workers, threads, task.accelerator, busy)
            order = order_of(recipe, task, threads)
            self.crew = Crew(self.session, Hand, order, count, task.accelerator, threads, say)
            self.crew.gather()
        except BaseException:
            self.close()
            raise

    @property
    def deaths(self) -> int:
        """Workers that died with a client in their hands."""
        return self.crew.deaths

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Report]:
        reports: list[Report] = []
        self._pending = []
        number, parcel = self._broadcast(cast)
        largest_first = sorted(ids, key=lambda k: (-task.data.size(k), k))
        answers = self.crew.spread(
            "train",
            largest_first,
            lambda k: (number, parcel, k, self.shards.train(k), self._remembered(k)),
            self.tick,
            "client",
            self._homes,
        )
        for _, answer in answers:
            value = from_array(answer, task.device)
            reports.append(Report(**value["report"]))
            self._pending.append(Client(**value["client"]))
        return reports

    def personal(
        self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int], phases: Sequence[Phase], keep: bool
    ) -> Iterator[PersonalResult]:
        number, parcel = self._broadcast(cast)
        trains = bool(phases)
        answers = self._personal(number, parcel, ids, trains, keep, self.tick)
        for answer in in_order(ids, answers):
            yield PersonalResult(**from_array(answer, task.device))

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        number, parcel = self._broadcast(cast)
        answers = self._personal(number, parcel, ids, False, False, silent)
        correct = {k: PersonalResult(**from_array(answer, task.device)).last for k, answer in answers}
        return {k: correct[k] for k in ids}

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        number, parcel = self._broadcast({"spec": net.head.spec, "tensors": net.tensors()})
        ids = task.everyone()
        answers = self.crew.spread(
            "survey", ids, lambda k: (number, parcel, k, self.shards.train(k)), self.tick, "client", self._homes
        )
        for answer in in_order(ids, answers):
            yield from_array(answer, task.device)

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """Chunks of the test set over the workers; the same chunks as in one process."""
        pieces = chunks(asked(task, held_out))
        parts = range(len(pieces))
        if len(parts) == 1:
            return super().logits(task, net, held_out)
        number, parcel = self._broadcast({"spec": net.head.spec, "tensors": net.tensors()})

        def args(i: int) -> tuple[Any, ...]:
            own = held_out is not None
            return number, parcel, self.shards.held_out(pieces[i]) if own else self.shards.part(i), own

        answers = self.crew.spread("logits", parts, args, silent, "part")
        z = [from_array(answer, task.device)["z"] for answer in in_order(parts, answers)]
        return torch.cat(z)[: len(asked(task, held_out))]

    def _personal(
        self, number: int, parcel: Any, ids: Sequence[int], trains: bool, keep: bool, tick: Tick
    ) -> Iterator[tuple[Any, Any]]:
        def args(k: int) -> tuple[Any, ...]:
            data = self.shards.train(k) if trains else self.shards.labels(k)
            return number, parcel, k, data, self.shards.test(k), self._remembered(k), trains, keep

        return self.crew.spread("personal", ids, args, tick, "client", self._homes)

    def close(self) -> None:
        if hasattr(self, "crew"):
            self.crew.close()
        self.session.close()

    def _broadcast(self, value: Any) -> tuple[int, Any]:
        """Once into the object store, whence every node fetches it once; it goes when the last reference goes."""
        self._number += 1
        return self._number, self._put(to_array(value))

    def _put(self, parcel: Parcel) -> Any:
        try:
            return self.session.ray.put(parcel)
        except (OSError, self.session.ray.exceptions.RayError) as error:
            raise EngineError(
                f"engine=ray: {parcel.nbytes / 1e6:.0f} MB found no room in the object store ({first_line(error)}); "
                f"start nodes with a larger --object-store-memory or free their disks, then `headway resume` the run"
            ) from None

    def _remembered(self, k: int) -> Parcel | None:
        client = self.store.get(k)
        return None if client is None else to_array(client)


def silent(done: int, total: int) -> None:
    """For work that is not to be stopped half-way."""


def cpus_for(workers: int | None, threads: int) -> int:
    """CPUs of a private cluster: those of this machine, or as many as the user asks for."""
    return max(cores(), (workers or 1) * threads)


def workers_for(session: Session, asked: int | None, threads: int, device: str, work: int) -> int:
    """As many as asked for, or as the whole cluster has room for; never more than there is work."""
    room = session.gpus() if device == "cuda" else session.cpus() // threads
    return max(1, min(asked if asked is not None else room, work))


def in_order(keys: Sequence[Any], answers: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
    """Answers in the order of their keys; only those that came too early are held."""
    early: dict[Any, Any] = {}
    waiting = deque(keys)
    for key, answer in answers:
        early[key] = answer
        while waiting and waiting[0] in early:
            yield early.pop(waiting.popleft())
