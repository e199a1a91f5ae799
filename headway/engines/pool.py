"""The local engine with workers: forked processes on this machine, one thread each, that train clients in parallel.

Workers inherit the data and the task in memory (copied on write), keep one net each, and receive the broadcast through
shared memory. Which worker trains which client, and in which order, does not change the result, not by one bit.
"""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.base.errors import EngineError
from headway.base.tree import Tree
from headway.base.wording import option, resume_call
from headway.core.phase import Phase
from headway.core.recipe import Recipe
from headway.core.reports import Part
from headway.core.state import Broadcast, Client
from headway.engines.local import (
    LocalEngine,
    drained,
    evaluate_personal,
    part_logits,
    samples_or_positions,
    surveyed,
)
from headway.engines.store import ClientStore
from headway.engines.transport import ALIGN, SharedBuffer, packable, unpacked
from headway.engines.worker import GONE, Worker, received
from headway.models.net import Net, chunks
from headway.training.cohort import cohorts, first_clients, train_cohort
from headway.training.engine import PersonalResult

if TYPE_CHECKING:
    from headway.training.task import Task

SLOT_MODELS = (8, 2)  # size of a buffer in models; the second where memory for the first cannot be mapped
FEW = 32  # slots where clients train together and units are fewer: for work that takes them one by one
SPARE_BYTES = 4 * 2**20  # added to each buffer
AHEAD = 2  # clients given to a worker at a time: the one it trains and the next, so that it never waits
SMALL = 1 << 15  # bytes that fit into a pipe while the other side does not read
MOST_DEATHS = 3  # workers that may die on one client; at this number the run stops
VERBS = {"train": "training", "personal": "personalising", "received": "evaluating", "survey": "surveying"}
Unit = tuple[int, ...]  # clients that a worker is given together: a cohort, else one


def alone(ids: Sequence[int]) -> list[Unit]:
    return [(k,) for k in ids]


def named(unit: Unit) -> str:
    """The clients of a unit in a message."""
    return f"client {unit[0]}" if len(unit) == 1 else f"the {len(unit)} clients {unit[0]}, {unit[1]}, ..."


class PoolEngine(LocalEngine):
    """The local engine in N worker processes, for one recipe and one task: workers inherit both when forked."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        workers: int,
        store: ClientStore | None = None,
        tick: Callable[[int, int], None] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(store, tick)
        self.say, self._deaths = say, 0
        self.recipe, self.task = recipe, task
        model = task.first_params(recipe).nbytes() + task.first_stats(recipe).nbytes()
        ids = task.everyone() if recipe.trains_everyone else task.sampling(0)
        units = cohorts(recipe, task, ids)
        together = max(map(len, units))
        self.most = len(ids) if together == 1 else max(len(units), min(len(ids), FEW))
        self.cast_buffer, *buffers = shared_buffers(1 + workers * AHEAD + self.most, model * together)
        self.inboxes = [buffers[w * AHEAD : (w + 1) * AHEAD] for w in range(workers)]
        self.slots = buffers[workers * AHEAD :]
        self.workers = [Worker(self._work(w)) for w in range(workers)]

    # ---- in the worker
    def _work(self, number: int) -> Callable[[Connection], None]:
        def work(pipe: Connection) -> None:
            task = self.task.on(self.task.gpus[number]) if self.task.gpus else self.task
            if task.device.type == "cuda":
                torch.cuda.set_device(task.device)
            cast: Broadcast | None = None
            net, held_out = task.net(self.recipe), None
            while True:
                try:
                    kind, *rest = pipe.recv()
                except EOFError:
                    return
                if kind == "here":
                    pipe.send((kind,))
                    continue
                if kind == "cast":
                    cast = Broadcast(**self.cast_buffer.unpack(rest[0], device=task.device))
                    continue
                if kind == "net":
                    value = self.cast_buffer.unpack(rest[0])
                    net, held_out = task.net_of(value["spec"]).load(value["tensors"]).eval(), value.get("held_out")
                    continue
                if kind == "logits":
                    # not into a slot: the caller may still read the round's reports there
                    part = chunks(samples_or_positions(task, held_out))[rest[0]]
                    answer = {"z": part_logits(task, net, part, held_out is not None)}
                    pipe.send((rest[0], self.inboxes[number][0].pack(answer)))
                    continue
                if kind == "survey":
                    unit, slot = rest[:2]
                    pipe.send((unit, slot, self.slots[slot].pack(surveyed(self.recipe, task, net, unit[0]))))
                    continue
                unit, slot, inbox, message, how = rest
                assert cast is not None
                kept = (
                    self.inboxes[number][inbox].unpack(message, device=task.device) if message else [None] * len(unit)
                )
                new = iter(
                    first_clients(
                        self.recipe, task, cast, [k for k, state in zip(unit, kept, strict=True) if not state]
                    )
                )
                clients = [Client(**state) if state else next(new) for state in kept]
                pipe.send((unit, slot, self._answer(task, kind, cast, clients, self.slots[slot], how)))

        return work

    def _answer(
        self, task: Task, kind: str, cast: Broadcast, clients: Sequence[Client], slot: SharedBuffer, how: Any
    ) -> bytes:
        if kind == "train":
            parts, states = train_cohort(self.recipe, task, cast, clients, own_memory=False, empty=slot.empty)
            return slot.pack(packable(parts, states))
        phases, (keep, known) = (self._phases, how) if kind == "personal" else ([], (False, None))
        return slot.pack(evaluate_personal(self.recipe, task, cast, clients[0], phases, keep, known))

    # ---- in the run
    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Part]:
        reports: list[Part] = []
        self._pending = []
        units = cohorts(recipe, task, ids)
        for _, answer in self._spread("train", ("cast", self.cast_buffer.pack(cast)), units):
            parts, states = unpacked(answer)
            reports += parts
            self._pending += states
        return reports

    def commit(self) -> None:
        """Store the new client states, copied out of the shared slots, which the next round overwrites."""
        self.store.put(copied(client) for client in drained(self._pending))

    def personal(
        self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int], phases: Sequence[Phase], keep: bool,
        known: Mapping[int, int] | None = None,
    ) -> Iterator[PersonalResult]:  # fmt: skip
        self._phases = phases
        self._restart_workers()  # phases contain functions, which cannot be sent; newly forked workers inherit them
        for start in range(0, len(ids), self.most):
            part = ids[start : start + self.most]
            opened = ("cast", self.cast_buffer.pack(cast))
            answers = self._spread("personal", opened, alone(part), lambda unit: (keep, (known or {}).get(unit[0])))
            results = [PersonalResult(**v) for _, v in answers]
            yield from sorted(results, key=lambda r: r.client)

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        correct: dict[int, int] = {}
        for start in range(0, len(ids), self.most):
            opened = ("cast", self.cast_buffer.pack(cast))
            part = self._spread("received", opened, alone(ids[start : start + self.most]))
            correct |= {k: PersonalResult(**v).last for (k,), v in part}
        return {k: correct[k] for k in ids}

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        """Survey the clients in the workers, as many at a time as there are slots; yield in client order."""
        ids = task.everyone()
        for start in range(0, len(ids), self.most):
            part = ids[start : start + self.most]
            opened = ("net", self.cast_buffer.pack({"spec": net.head.spec, "tensors": net.tensors()}))
            answers = dict(self._spread("survey", opened, alone(part)))
            yield from (answers[(k,)] for k in part)

    def close(self) -> None:
        """End the workers and free the shared memory."""
        super().close()
        self._stop_workers()
        self.slots, self.inboxes, self.cast_buffer, self._pending = [], [], SharedBuffer(ALIGN), []

    def _stop_workers(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    @property
    def deaths(self) -> int:
        """Worker processes that died so far."""
        return self._deaths

    def _on_worker_death(self, work: str, count: int, then: str) -> None:
        """Report the death of a worker, the `count`-th at this work; raise an error if there are too many."""
        self._deaths += 1
        if count >= MOST_DEATHS:
            raise EngineError(
                f"engine=local: {count} worker processes died while {work}; the machine may be out of memory: "
                f"give fewer {option('workers')} or more memory, then {resume_call()} continues the run"
            ) from None
        self.say(f"a worker process died while {work}; {then}")

    def wait_for_workers(self) -> None:
        """Wait until all workers have started."""
        for worker in self.workers:
            worker.pipe.send(("here",))
        for worker in self.workers:
            received(worker.pipe)

    def _replace(self, w: int) -> None:
        self.workers[w].stop()
        self.workers[w] = Worker(self._work(w))

    def _restart_workers(self) -> None:
        count = len(self.workers)
        self._stop_workers()
        self.workers = [Worker(self._work(w)) for w in range(count)]

    def _spread(
        self, kind: str, opened: Any, units: Sequence[Unit], how: Callable[[Unit], Any] = lambda unit: None
    ) -> Iterable[tuple[Unit, Any]]:
        """Distribute the clients over the workers, largest units first; yield (unit, result) as they finish.

        A worker that dies is replaced, and its unit starts again. `opened` is the first message to every worker: the
        broadcast, or a net; `how`: what a worker must know of a unit besides.
        """
        slot_of = {unit: slot for slot, unit in enumerate(units)}
        queue = sorted(units, key=lambda unit: (sum(map(self.task.data.size, unit)), unit))  # popped from the end
        clients = sum(map(len, units))
        tick = self.tick if kind != "received" else lambda done, total: None
        at_work: dict[int, list[tuple[Unit, int]]] = {w: [] for w in range(len(self.workers))}  # (unit, inbox)
        deaths: dict[Unit, int] = {}
        done = 0

        def give(w: int) -> None:
            """Give an idle worker a unit, and a second one in advance while more are left than all workers can hold.

            A worker does not read while it trains, so a message sent in advance must fit into the pipe; otherwise
            worker and run would wait for each other.
            """
            held = at_work[w]
            while queue and (not held or (len(held) < AHEAD and len(queue) > AHEAD * len(self.workers))):
                unit = queue.pop()
                inbox = next(i for i in range(AHEAD) if i not in [taken for _, taken in held])
                states = [self.store.get(k) for k in unit] if kind != "survey" else []
                message = self.inboxes[w][inbox].pack(states) if any(state is not None for state in states) else b""
                if held and len(message) > SMALL:
                    queue.append(unit)
                    return
                held.append((unit, inbox))
                self.workers[w].send((kind, unit, slot_of[unit], inbox, message, how(unit)))

        with selectors.DefaultSelector() as ready:
            for w, worker in enumerate(self.workers):
                ready.register(worker.pipe, selectors.EVENT_READ, w)
                worker.send(opened)
                give(w)
            while any(at_work.values()):
                tick(done, clients)
                for key, _ in ready.select(timeout=0.5):
                    w = key.data
                    try:
                        unit, slot, message = received(self.workers[w].pipe)
                    except GONE:
                        lost = [held for held, _ in at_work[w]]
                        if lost:  # the first was being worked on; the second had not been started
                            deaths[lost[0]] = deaths.get(lost[0], 0) + 1
                            work = f"{VERBS[kind]} {named(lost[0])}"
                            self._on_worker_death(work, deaths[lost[0]], "a new worker starts it again")
                        else:
                            self._on_worker_death("waiting", 0, "a new worker replaces it")
                        queue += reversed(lost)
                        at_work[w] = []
                        ready.unregister(self.workers[w].pipe)
                        self._replace(w)
                        ready.register(self.workers[w].pipe, selectors.EVENT_READ, w)
                        self.workers[w].send(opened)
                        give(w)
                        continue
                    at_work[w].pop(0)
                    give(w)
                    done += len(unit)
                    # no copy in training: the round's reports are used up before the next round overwrites the slots
                    yield unit, self.slots[slot].unpack(message, copy=kind != "train")
        tick(done, clients)

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """The same as in one process, the chunks computed in the workers."""
        parts = len(chunks(samples_or_positions(task, held_out)))
        if parts == 1:
            return super().logits(task, net, held_out)
        also = {} if held_out is None else {"held_out": held_out}
        packed = self.cast_buffer.pack({"spec": net.head.spec, "tensors": net.tensors()} | also)
        answers: dict[int, Tensor] = {}
        todo = list(reversed(range(parts)))
        busy: dict[int, int] = {}
        deaths = 0

        def give(w: int) -> None:
            if todo:
                busy[w] = todo.pop()
                self.workers[w].send(("logits", busy[w]))

        for w, worker in enumerate(self.workers[:parts]):
            worker.send(("net", packed))
            give(w)
        while busy:
            for pipe in wait([self.workers[w].pipe for w in busy]):
                w = next(i for i in busy if self.workers[i].pipe is pipe)
                number = busy.pop(w)
                try:
                    _, message = received(self.workers[w].pipe)
                    answers[number] = self.inboxes[w][0].unpack(message, copy=True)["z"]
                except GONE:
                    deaths += 1
                    self._on_worker_death("evaluating", deaths, "a new worker evaluates its part of the test set again")
                    todo.append(number)
                    self._replace(w)
                    self.workers[w].send(("net", packed))
                give(w)
        return torch.cat([answers[i] for i in range(parts)])[: len(samples_or_positions(task, held_out))]


def shared_buffers(count: int, model: int) -> list[SharedBuffer]:
    """`count` buffers of several times the model's size; smaller ones where the process cannot map so much memory.

    Tensors that do not fit into a buffer are sent through the pipe, which is slower but gives the same result.
    """
    for models in SLOT_MODELS:
        with contextlib.suppress(OSError, OverflowError):
            return SharedBuffer.allocate(count, models * model + SPARE_BYTES)
    size = count * (SLOT_MODELS[-1] * model + SPARE_BYTES) / 1e9
    raise EngineError(
        f"engine=local: workers need {size:.1f} GB of address space for {count} models, and this process may not map "
        f"so much; give {option('workers', 1)}, or raise the limit (ulimit -v, vm.max_map_count)"
    )


def copied(client: Client) -> Client:
    """A copy that shares no memory with the original."""

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        if isinstance(value, Tree):
            return value.copy()
        if isinstance(value, dict):
            return {key: copy_of(v) for key, v in value.items()}
        if isinstance(value, list):
            return [copy_of(v) for v in value]
        return value

    return Client(client.id, copy_of(client.personal), copy_of(client.kept), copy_of(client.momentum))
