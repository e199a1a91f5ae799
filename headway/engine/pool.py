"""Workers on this machine: forked processes with one thread each that train clients side by side.

They inherit the data and the task as they stand (nothing is copied until it is written to), keep one net, and get the
broadcast through shared memory. Who trains which client, and in which order, changes no bit of the result.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import multiprocessing
import os
import selectors
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.client import first_client, train_client
from headway.engine.local import LocalEngine, PersonalResult, asked, drained, evaluate_personal, part_logits, surveyed
from headway.engine.store import ClientStore
from headway.engine.transport import ALIGN, Room
from headway.errors import EngineError
from headway.local import Phase
from headway.models.net import Net, chunks
from headway.recipes import Recipe
from headway.state import Broadcast, Client, Report
from headway.tree import Tree

if TYPE_CHECKING:
    from headway.task import Task

SLOT_MODELS = (8, 2)  # a client's answer may be so many models large before it leaves shared memory; less if need be
SPARE_BYTES = 4 * 2**20
AHEAD = 2  # clients a worker holds: the one at work and one that waits, so that nobody idles between two
SMALL = 1 << 15  # bytes that a pipe takes from one side while the other does not read
GONE = (EOFError, OSError)  # what a dead worker's pipe answers
MOST_DEATHS = 3  # workers one client may take with it before the run stops
PR_SET_PDEATHSIG = 1
ERROR = "error"


class Worker:
    """A forked process and the pipe to it."""

    def __init__(self, work: Callable[[Connection], None]):
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self.pipe.close()
                die_with_parent()
                work(theirs)
            except BaseException as error:
                send_error(theirs, error)
            finally:
                os._exit(0)
        theirs.close()

    def tell(self, message: Any) -> None:
        """Send; should it be dead, whoever waits for its answer finds out."""
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.close()
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def send_error(pipe: Connection, error: BaseException) -> None:
    """What went wrong in a worker belongs to the run, whole; an error that cannot be pickled goes as text."""
    trace = "".join(traceback.format_exception(error))
    try:
        copy.copy(error)  # made again as at the pipe's other end: one with a constructor like no other fails here too
        pipe.send((ERROR, error, trace))
    except Exception:
        pipe.send((ERROR, RuntimeError(f"{type(error).__name__}: {error}"), trace))


def received(pipe: Connection) -> Any:
    """The worker's answer; its error is raised here, its own traceback beneath."""
    answer = pipe.recv()
    if answer[0] == ERROR:
        raise answer[1] from RuntimeError(f"in a worker:\n{answer[2]}")
    return answer


def die_with_parent() -> None:
    """A worker must not outlive the run, however that ends; nor does it answer Ctrl-C, the run does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)


class PoolEngine(LocalEngine):
    """The local engine with several hands. One recipe, one task: workers are forked with both in memory."""

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
        self.most = len(task.everyone() if recipe.trains_everyone else task.sampling(0))
        self.cast_room, *rooms = shared_rooms(1 + workers * AHEAD + self.most, model)
        self.inboxes = [rooms[w * AHEAD : (w + 1) * AHEAD] for w in range(workers)]
        self.slots = rooms[workers * AHEAD :]
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
                    cast = Broadcast(**self.cast_room.unpack(rest[0], device=task.device))
                    continue
                if kind == "net":
                    value = self.cast_room.unpack(rest[0])
                    net, held_out = task.net_of(value["spec"]).load(value["tensors"]).eval(), value.get("held_out")
                    continue
                if kind == "logits":
                    # not into a slot: the round's reports may still be looked at
                    part = chunks(asked(task, held_out))[rest[0]]
                    answer = {"z": part_logits(task, net, part, held_out is not None)}
                    pipe.send((rest[0], self.inboxes[number][0].pack(answer)))
                    continue
                if kind == "survey":
                    k, slot = rest[:2]
                    pipe.send((k, slot, self.slots[slot].pack(surveyed(self.recipe, task, net, k))))
                    continue
                k, slot, inbox, message, how = rest
                assert cast is not None
                kept = self.inboxes[number][inbox].unpack(message, device=task.device) if message else None
                client = Client(**kept) if kept else first_client(self.recipe, task, cast, k)
                pipe.send((k, slot, self._answer(task, kind, cast, client, self.slots[slot], how)))

        return work

    def _answer(self, task: Task, kind: str, cast: Broadcast, client: Client, room: Room, how: Any) -> bytes:
        if kind == "train":
            report, after = train_client(self.recipe, task, cast, client, apart_from_net=False)
            return room.pack({"report": report, "client": after})
        phases = self._phases if kind == "personal" else []
        return room.pack(evaluate_personal(self.recipe, task, cast, client, phases, keep=bool(how)))

    # ---- in the run
    def train(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> list[Report]:
        reports: list[Report] = []
        self._pending = []
        for _, value in self._spread("train", ("cast", self.cast_room.pack(cast)), ids, None):
            reports.append(Report(**value["report"]))
            self._pending.append(Client(**value["client"]))
        return reports

    def commit(self) -> None:
        """What clients keep is copied out of the shared slots, which the next round writes over."""
        self.store.put(copied(client) for client in drained(self._pending))

    def personal(
        self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int], phases: Sequence[Phase], keep: bool
    ) -> Iterator[PersonalResult]:
        self._phases = phases
        self._renew()  # phases hold functions, so workers are forked anew instead of sent them
        for start in range(0, len(ids), self.most):
            part = ids[start : start + self.most]
            opened = ("cast", self.cast_room.pack(cast))
            results = [PersonalResult(**v) for _, v in self._spread("personal", opened, part, keep)]
            yield from sorted(results, key=lambda r: r.client)

    def received(self, recipe: Recipe, task: Task, cast: Broadcast, ids: Sequence[int]) -> dict[int, int]:
        correct: dict[int, int] = {}
        for start in range(0, len(ids), self.most):
            opened = ("cast", self.cast_room.pack(cast))
            part = self._spread("received", opened, ids[start : start + self.most], None)
            correct |= {k: PersonalResult(**v).last for k, v in part}
        return {k: correct[k] for k in ids}

    def survey(self, recipe: Recipe, task: Task, net: Net) -> Iterator[dict[str, Any]]:
        """Clients over the workers, a handful at a time; answers come in the order of the clients."""
        ids = task.everyone()
        for start in range(0, len(ids), self.most):
            part = ids[start : start + self.most]
            opened = ("net", self.cast_room.pack({"spec": net.head.spec, "tensors": net.tensors()}))
            answers = dict(self._spread("survey", opened, part, None))
            yield from (answers[k] for k in part)

    def close(self) -> None:
        """End the workers and let go of the memory they shared: whoever keeps the engine need not keep that."""
        super().close()
        self._dismiss()
        self.slots, self.inboxes, self.cast_room, self._pending = [], [], Room(ALIGN), []

    def _dismiss(self) -> None:
        for worker in self.workers:
            worker.stop()
        self.workers = []

    @property
    def deaths(self) -> int:
        """Workers that died so far."""
        return self._deaths

    def _mourn(self, work: str, count: int, then: str) -> None:
        """A worker died at this work, the count-th to do so: another takes it up, unless too many have tried."""
        self._deaths += 1
        if count >= MOST_DEATHS:
            raise EngineError(
                f"engine=local: {work} ended {count} workers, one after another; the machine may be out of memory: "
                f"give fewer --workers or more memory, then `headway resume` the run"
            ) from None
        self.say(f"a worker died; {then}")

    def wait_for_workers(self) -> None:
        """Until all of them have started."""
        for worker in self.workers:
            worker.pipe.send(("here",))
        for worker in self.workers:
            received(worker.pipe)

    def _replace(self, w: int) -> None:
        self.workers[w].stop()
        self.workers[w] = Worker(self._work(w))

    def _renew(self) -> None:
        count = len(self.workers)
        self._dismiss()
        self.workers = [Worker(self._work(w)) for w in range(count)]

    def _spread(self, kind: str, opened: Any, ids: Sequence[int], how: Any) -> Iterable[tuple[int, dict[str, Any]]]:
        """Clients over workers, largest first; a worker that dies is replaced and its client's work done again.

        `opened` is what every worker hears first: the broadcast, or a net.
        """
        slot_of = {k: slot for slot, k in enumerate(ids)}
        queue = sorted(ids, key=lambda k: (self.task.data.size(k), k))  # popped from the end
        tick = self.tick if kind != "received" else lambda done, total: None
        at_work: dict[int, list[tuple[int, int]]] = {w: [] for w in range(len(self.workers))}  # (client, inbox)
        deaths: dict[int, int] = {}
        done = 0

        def give(w: int) -> None:
            """One client to a worker without any; a second while so many are left that all stay busy to the end.

            A worker that trains does not read: what waits for it must fit into the pipe, or both would wait.
            """
            held = at_work[w]
            while queue and (not held or (len(held) < AHEAD and len(queue) > AHEAD * len(self.workers))):
                k = queue.pop()
                inbox = next(i for i in range(AHEAD) if i not in [taken for _, taken in held])
                client = self.store.get(k) if kind != "survey" else None
                message = self.inboxes[w][inbox].pack(client) if client is not None else b""
                if held and len(message) > SMALL:
                    queue.append(k)
                    return
                held.append((k, inbox))
                self.workers[w].tell((kind, k, slot_of[k], inbox, message, how))

        with selectors.DefaultSelector() as ready:
            for w, worker in enumerate(self.workers):
                ready.register(worker.pipe, selectors.EVENT_READ, w)
                worker.tell(opened)
                give(w)
            while any(at_work.values()):
                tick(done, len(ids))
                for key, _ in ready.select(timeout=0.5):
                    w = key.data
                    try:
                        k, slot, message = received(self.workers[w].pipe)
                    except GONE:
                        lost = [held for held, _ in at_work[w]]
                        if lost:  # the first was at work; the one behind it did nothing
                            deaths[lost[0]] = deaths.get(lost[0], 0) + 1
                            self._mourn(f"client {lost[0]}", deaths[lost[0]], f"client {lost[0]} is begun again")
                        else:
                            self._mourn("waiting", 0, "it is replaced")
                        queue += reversed(lost)
                        at_work[w] = []
                        ready.unregister(self.workers[w].pipe)
                        self._replace(w)
                        ready.register(self.workers[w].pipe, selectors.EVENT_READ, w)
                        self.workers[w].tell(opened)
                        give(w)
                        continue
                    at_work[w].pop(0)
                    give(w)
                    done += 1
                    # a round's answers are read before the next one is written
                    yield k, self.slots[slot].unpack(message, copy=kind != "train")
        tick(done, len(ids))

    def logits(self, task: Task, net: Net, held_out: Tensor | None = None) -> Tensor:
        """Chunks of the test set over the workers; the same chunks as in one process."""
        parts = len(chunks(asked(task, held_out)))
        if parts == 1:
            return super().logits(task, net, held_out)
        also = {} if held_out is None else {"held_out": held_out}
        packed = self.cast_room.pack({"spec": net.head.spec, "tensors": net.tensors()} | also)
        answers: dict[int, Tensor] = {}
        todo = list(reversed(range(parts)))
        busy: dict[int, int] = {}
        deaths = 0

        def give(w: int) -> None:
            if todo:
                busy[w] = todo.pop()
                self.workers[w].tell(("logits", busy[w]))

        for w, worker in enumerate(self.workers[:parts]):
            worker.tell(("net", packed))
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
                    self._mourn("the evaluation", deaths, "its part of the test set is judged again")
                    todo.append(number)
                    self._replace(w)
                    self.workers[w].tell(("net", packed))
                give(w)
        return torch.cat([answers[i] for i in range(parts)])[: len(asked(task, held_out))]


def shared_rooms(count: int, model: int) -> list[Room]:
    """One room for each of so many values, several models large; less where the process may name less memory.

    What a room cannot hold goes through a pipe, which is slower and changes nothing else.
    """
    for models in SLOT_MODELS:
        with contextlib.suppress(OSError, OverflowError):
            return Room.several(count, models * model + SPARE_BYTES)
    size = count * (SLOT_MODELS[-1] * model + SPARE_BYTES) / 1e9
    raise EngineError(
        f"engine=local: workers share {size:.1f} GB of addresses for {count} models, and this process may not have "
        f"them; give --workers 1, or allow it more (ulimit -v, vm.max_map_count)"
    )


def copied(client: Client) -> Client:
    """The same value in memory of its own."""

    def apart(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        if isinstance(value, Tree):
            return value.copy()
        if isinstance(value, dict):
            return {key: apart(v) for key, v in value.items()}
        if isinstance(value, list):
            return [apart(v) for v in value]
        return value

    return Client(client.id, apart(client.personal), apart(client.kept), apart(client.momentum))
