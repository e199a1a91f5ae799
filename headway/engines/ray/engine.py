"""The Ray engine: it trains clients on the workers of a cluster, by the same function as the local engine.

Workers build the task from its settings and keep a net. Clients' samples are in the object store of the nodes that
train them (shards.py). Client states are kept by the run and not by workers, so a worker may die at any moment: its
client is trained again from the same state and the same random streams, with the same bits as result.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.base.errors import EngineError, HeadwayError
from headway.base.machine import cores
from headway.base.wording import option, resume_call
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Part
from headway.core.state import Broadcast
from headway.engines.local import LocalEngine, samples_or_positions
from headway.engines.ray.session import Session, first_line
from headway.engines.ray.shards import Shards
from headway.engines.ray.worker import ClientWorker, Packed, order_of
from headway.engines.store import ClientStore
from headway.engines.transport import from_array, to_array, unpacked
from headway.models.net import Net, chunks
from headway.training.cohort import cohorts
from headway.training.engine import PersonalResult, Say, Tick

if TYPE_CHECKING:
    from headway.training.task import Task

MOST_DEATHS = 3  # workers that may die on one client; at this number the run stops
PLACE_SECONDS = 120.0  # for the cluster to start a first worker, and for that worker to build the task
WAIT_SECONDS = 0.5  # longest wait for a result before `tick` is called again
LOOK_AHEAD = 64  # clients at the front of the queue among which one is sought whose samples are on the worker's node


@dataclass(eq=False)
class RayWorker:
    """The run's handle of one worker."""

    actor: Any
    pid: int = 0
    node: str = ""


class WorkerGroup:
    """Workers of one class. Each is given one call at a time; a worker that dies is replaced."""

    def __init__(self, session: Session, kind: type, order: Any, count: int, device: str, threads: int, say: Say):
        self.ray, self.say, self.deaths = session.ray, say, 0
        self._order = json.dumps(order)
        needs = {"num_cpus": threads, "num_gpus": 1 if device == "cuda" else 0}
        self._kind = self.ray.remote(kind).options(**needs, max_restarts=0, scheduling_strategy="SPREAD")
        self._needs = f"{threads} CPU" + (" and one GPU" if device == "cuda" else "")
        self._idle: list[RayWorker] = []
        self._starting: dict[Any, RayWorker] = {}  # reference to the result of `ready` -> the worker
        self._busy: dict[Any, tuple[RayWorker, Any]] = {}  # reference to a call's result -> the worker, the call's key
        self._failed_starts = 0  # consecutive workers that died before they were ready
        for _ in range(count):
            self._start_worker()

    @property
    def workers(self) -> list[RayWorker]:
        """The workers that are idle or busy."""
        return [*self._idle, *(worker for worker, _ in self._busy.values())]

    def wait_for_first(self) -> None:
        """Wait until the first worker is ready; raise EngineError if none can start."""
        since = time.monotonic()
        while not self.workers:
            self._poll(since)

    def spread(
        self,
        method: str,
        keys: Sequence[Any],
        args: Callable[[Any], tuple[Any, ...]],
        tick: Tick,
        what: str,
        last_nodes: dict[Any, str] | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Call `method` once per key; yield (key, result) as the calls finish. A call is repeated if its worker dies.

        `last_nodes` maps a key to the node that had it last, whose workers are given it first; it is updated here.
        """
        last_nodes = {} if last_nodes is None else last_nodes
        queue, deaths, done = deque(keys), dict.fromkeys(keys, 0), 0
        since = time.monotonic()
        try:
            while queue or self._busy:
                while queue and self._idle:
                    key = self._next_key(self._idle[0].node, queue, last_nodes)
                    given = args(key)  # before a worker is removed from the idle ones: this may raise
                    worker = self._idle.pop(0)
                    last_nodes[key] = worker.node
                    self._busy[getattr(worker.actor, method).remote(*given)] = (worker, key)
                since = time.monotonic() if self._busy else since
                tick(done, len(keys))
                for worker, key, ref in self._poll(since):
                    try:
                        answer = self._answer(ref)
                    except WorkerDied as death:
                        deaths[key] += 1
                        self._on_worker_death(worker, f"{what} {key}", death, deaths[key])
                        queue.appendleft(key)
                        continue
                    self._idle.append(worker)
                    done += 1
                    yield key, answer
            tick(done, len(keys))
        finally:
            for worker, _ in self._busy.values():  # the loop was left early: end the calls that still run
                self.ray.kill(worker.actor)
                self._start_worker()
            self._busy = {}

    def _next_key(self, node: str, queue: deque[Any], last_nodes: dict[Any, str]) -> Any:
        """Take a key from the queue: one that was last on this node, else one that no live node had, else the first."""
        front = list(islice(queue, LOOK_AHEAD))
        nodes = {worker.node for worker in self.workers}
        on_this_node = (i for i, key in enumerate(front) if last_nodes.get(key) == node)
        on_no_node = (i for i, key in enumerate(front) if last_nodes.get(key) not in nodes)
        at = next(on_this_node, next(on_no_node, 0))
        key = queue[at]
        del queue[at]
        return key

    def close(self) -> None:
        """End every worker, also those that have not started, so that no CPU stays reserved."""
        for worker in [*self.workers, *self._starting.values()]:
            self.ray.kill(worker.actor)
        self._idle, self._starting, self._busy = [], {}, {}

    def _start_worker(self) -> None:
        worker = RayWorker(self._kind.remote(self._order))
        self._starting[worker.actor.ready.remote()] = worker

    def _poll(self, since: float) -> list[tuple[RayWorker, Any, Any]]:
        """Mark workers that are ready as idle; return the calls that have ended, failed ones too."""
        refs, _ = self.ray.wait([*self._busy, *self._starting], num_returns=1, timeout=WAIT_SECONDS)
        ended = []
        for ref in refs:
            if ref in self._starting:
                self._on_ready(self._starting.pop(ref), ref)
            else:
                ended.append((*self._busy.pop(ref), ref))
        if not refs and not self.workers and time.monotonic() - since > PLACE_SECONDS:
            raise EngineError(
                f"engine=ray: no worker could be started in {PLACE_SECONDS:.0f} s; each needs {self._needs} on one "
                f"node: free some, give fewer {option('workers')} or {option('threads')}, or add nodes"
            )
        return ended

    def _on_ready(self, worker: RayWorker, ref: Any) -> None:
        """Mark a worker as idle when its `ready` or `identify` has returned; start another if it died instead."""
        try:
            who = json.loads(self._answer(ref))
        except WorkerDied as death:
            started_before = bool(worker.pid)  # then it died later, while idle
            self._failed_starts += not started_before
            if self._failed_starts >= MOST_DEATHS:
                raise EngineError(
                    f"engine=ray: {self._failed_starts} workers died while starting ({death}); check that every node "
                    f"has headway with the same versions, and enough free memory"
                ) from None
            self._start_worker()
            return
        if who["fault"]:
            raise EngineError(
                f"engine=ray: node {who['node']} cannot build this task: {who['fault']}; workers build the model from "
                f"its name, so every node needs the same versions, and the same files under the same names"
            )
        self._failed_starts = 0
        worker.pid, worker.node = who["pid"], who["node"]
        self._idle.append(worker)

    def _on_worker_death(self, worker: RayWorker, work: str, death: WorkerDied, count: int) -> None:
        self.deaths += 1
        self.ray.kill(worker.actor)  # if only its result was lost, it still runs and has a CPU reserved
        for other in [one for one in self._idle if one.node == worker.node]:  # the whole node may be lost: check them
            self._idle.remove(other)
            self._starting[other.actor.identify.remote()] = other
        if count >= MOST_DEATHS:
            raise EngineError(
                f"engine=ray: {count} workers died while working on {work}, the last on node {worker.node} ({death}); "
                f"the nodes may be out of memory: give fewer {option('workers')}, then "
                f"{resume_call()} continues the run"
            )
        self.say(
            f"worker {worker.pid} on node {worker.node} died while working on {work} ({death}); "
            f"another worker starts it again"
        )
        self._start_worker()

    def _answer(self, ref: Any) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(ref)
        except errors.RayTaskError as error:  # the call raised an error, as it would have in this process
            if isinstance(error.cause, HeadwayError):
                raise type(error.cause)(str(error.cause)) from None
            raise
        except errors.RayError as error:  # the worker, its node or the stored result was lost
            raise WorkerDied(type(error).__name__) from None


class WorkerDied(Exception):
    """A worker or its result was lost; the text is the name of Ray's error."""


class RayEngine(LocalEngine):
    """Trains clients on the workers of a cluster, for one recipe and one task: workers are started with both."""

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
        self._last_nodes: dict[Any, str] = {}  # client -> the node that trained it last, which has its samples
        self.session = Session(address, cpus_for(workers, threads))
        self.shards = Shards(self._put, task)
        try:
            count = workers_for(self.session, workers, threads, task.accelerator, busy)
            order = order_of(recipe, task, threads)
            self.group = WorkerGroup(self.session, ClientWorker, order, count, task.accelerator, threads, say)
            self.group.wait_for_first()
        except BaseException:
            self.close()
            raise

    @property
    def deaths(self) -> int:
        """Workers that died while training a client."""
        return self.group.deaths

    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Part]:
        reports: list[Part] = []
        self._pending = []
        number, packed = self._broadcast(cast)
        units = sorted(cohorts(recipe, task, ids), key=lambda unit: (-sum(map(task.data.size, unit)), unit))
        keys = [unit[0] if len(unit) == 1 else unit for unit in units]  # a client alone is known by its number

        def args(key: int | tuple[int, ...]) -> tuple[Any, ...]:
            unit = (key,) if isinstance(key, int) else key
            return number, packed, unit, *(self.shards.train(k) for k in unit), *(self._state_of(k) for k in unit)

        for _, answer in self.group.spread("train", keys, args, self.tick, "client", self._last_nodes):
            parts, states = unpacked(from_array(answer, task.device))
            reports += parts
            self._pending += states
        return reports

    def personal(
        self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int], phases: Sequence[Phase], keep: bool,
        known: Mapping[int, int] | None = None,
    ) -> Iterator[PersonalResult]:  # fmt: skip
        number, packed = self._broadcast(cast)
        trains = bool(phases)
        answers = self._personal(number, packed, ids, trains, keep, self.tick, known or {})
        for answer in in_order(ids, answers):
            yield PersonalResult(**from_array(answer, task.device))

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        number, packed = self._broadcast(cast)
        answers = self._personal(number, packed, ids, False, False, silent, {})
        correct = {k: PersonalResult(**from_array(answer, task.device)).last for k, answer in answers}
        return {k: correct[k] for k in ids}

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        number, packed = self._broadcast({"spec": net.head.spec, "tensors": net.tensors()})
        ids = task.everyone()
        answers = self.group.spread(
            "survey", ids, lambda k: (number, packed, k, self.shards.train(k)), self.tick, "client", self._last_nodes
        )
        for answer in in_order(ids, answers):
            yield from_array(answer, task.device)

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """The same as in one process, the chunks computed in the workers."""
        pieces = chunks(samples_or_positions(task, held_out))
        parts = range(len(pieces))
        if len(parts) == 1:
            return super().logits(task, net, held_out)
        number, packed = self._broadcast({"spec": net.head.spec, "tensors": net.tensors()})

        def args(i: int) -> tuple[Any, ...]:
            own = held_out is not None
            return number, packed, self.shards.held_out(pieces[i]) if own else self.shards.part(i), own

        answers = self.group.spread("logits", parts, args, silent, "part")
        z = [from_array(answer, task.device)["z"] for answer in in_order(parts, answers)]
        return torch.cat(z)[: len(samples_or_positions(task, held_out))]

    def _personal(
        self, number: int, packed: Any, ids: Sequence[int], trains: bool, keep: bool, tick: Tick,
        known: Mapping[int, int],
    ) -> Iterator[tuple[Any, Any]]:  # fmt: skip
        def args(k: int) -> tuple[Any, ...]:
            data = self.shards.train(k) if trains else self.shards.labels(k)
            return number, packed, k, data, self.shards.test(k), self._state_of(k), trains, keep, known.get(k)

        return self.group.spread("personal", ids, args, tick, "client", self._last_nodes)

    def close(self) -> None:
        if hasattr(self, "group"):
            self.group.close()
        self.session.close()

    def _broadcast(self, value: Any) -> tuple[int, Any]:
        """Put a value into the object store, from which each node fetches it once; returns its number and reference."""
        self._number += 1
        return self._number, self._put(to_array(value))

    def _put(self, packed: Packed) -> Any:
        try:
            return self.session.ray.put(packed)
        except (OSError, self.session.ray.exceptions.RayError) as error:
            raise EngineError(
                f"engine=ray: {packed.nbytes / 1e6:.0f} MB do not fit into the object store ({first_line(error)}); "
                f"start nodes with a larger --object-store-memory or free their disks, then {resume_call()} "
                f"continues the run"
            ) from None

    def _state_of(self, k: int) -> Packed | None:
        client = self.store.get(k)
        return None if client is None else to_array(client)


def silent(done: int, total: int) -> None:
    """A tick for work that must not be stopped half-way."""


def cpus_for(workers: int | None, threads: int) -> int:
    """CPUs of a private cluster: those of this machine, or more if the user asks for more workers."""
    return max(cores(), (workers or 1) * threads)


def workers_for(session: Session, asked: int | None, threads: int, device: str, work: int) -> int:
    """The number of workers: as many as asked for, else as the cluster can run; at most one per call (`work`)."""
    possible = session.gpus() if device == "cuda" else session.cpus() // threads
    return max(1, min(asked if asked is not None else possible, work))


def in_order(keys: Sequence[Any], answers: Iterator[tuple[Any, Any]]) -> Iterator[Any]:
    """Yield results in the order of `keys`; results that come too early are kept until their turn."""
    early: dict[Any, Any] = {}
    waiting = deque(keys)
    for key, answer in answers:
        early[key] = answer
        while waiting and waiting[0] in early:
            yield early.pop(waiting.popleft())
