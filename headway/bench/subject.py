"""A subject of the benchmark in a process of its own: it prepares, reports, and does one turn of work per request.

    python -m headway.bench.subject headway:w1:fedavg

It writes JSON lines to standard output and reads `go` lines from standard input; it exits at the end of its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from headway.base.machine import cores
from headway.base.names import in_body
from headway.bench import anchor, peak
from headway.bench.memory import used
from headway.bench.workloads import WORKLOADS, growing_task, images, plain_model, task_of, uncached
from headway.core.phase import Phase
from headway.data import Dataset
from headway.engines import ClientStore, PoolEngine
from headway.engines.choice import engine_for, set_threads
from headway.engines.memory import keep_freed_memory
from headway.engines.options import EngineOptions
from headway.methods import recipe as parse
from headway.training import defaults, rounds
from headway.training.client import first_client, personal_net
from headway.training.task import Task
from headway.training.tuning import layout_for

HEAD_CLIENTS = 4  # enough clients for a stable time; all do the same work
HEAD_RECIPES = {  # ten epochs of the head alone, with a fixed body
    "fedrep": "fedrep(head_epochs=10)",
    "fedetf": "fedetf+algorithm2(turns=5, epochs=1)",
}
CCVR = "fedavg+ccvr(per_class=2000, epochs=100)"
GEMM, GEMM_TIMES = 1536, 16


@dataclass(frozen=True)
class Work:
    """The amount of work of a turn, by which its time is divided."""

    rounds: int = 1
    steps: int = 0
    samples: int = 0
    gflops: float = 0.0  # GFLOP/s of the best matrix product
    fma_gflops: float | None = None


class Subject(Protocol):
    """Something to time. `about` describes it and is known before the first turn."""

    about: dict[str, Any]

    def ready(self) -> None: ...
    def turn(self) -> Work: ...
    def close(self) -> None: ...


class NoSetup:
    """Base of subjects that have nothing to do before and after a turn."""

    about: dict[str, Any]

    def ready(self) -> None:
        """Called before each turn, outside the measured time."""

    def close(self) -> None:
        """Called at the end."""


class Rounds:
    """Rounds as `headway run` makes them, without evaluation, checkpoints or files."""

    def __init__(self, recipe: str, task: Task, workers: int | None, turns: int, tune: bool = False):
        set_threads(EngineOptions())
        task = defaults.by_rule(task)
        task = task.in_layout(layout_for(task)) if tune else task  # as `headway run --tune`
        self.recipe, self.task, self.per_turn = parse(recipe), task, turns
        began = time.perf_counter()
        self.engine = engine_for(
            self.recipe, task, EngineOptions(workers=workers), ClientStore(), lambda done, total: None
        )
        if isinstance(self.engine, PoolEngine):
            self.engine.wait_for_workers()
        self.workers_ready = time.perf_counter() - began
        self.server = rounds.begin(self.recipe, task)
        processes = max(1, len(getattr(self.engine, "workers", [])))
        self.about = {"processes": processes, "layout": task.layout, "workers_ready": self.workers_ready}

    def ready(self) -> None:
        """Nothing to prepare: the workers have started."""

    def turn(self) -> Work:
        steps = samples = 0
        for _ in range(self.per_turn):
            self.server, _, reports = rounds.run_round(self.server, self.recipe, self.task, self.engine)
            steps += sum(r.steps for r in reports)
            samples += sum(r.n for r in reports) * self.task.epochs
        return Work(self.per_turn, steps, samples)

    def close(self) -> None:
        self.engine.close()


class Anchor(NoSetup):
    """The same batches in a plain loop on this number of threads."""

    def __init__(self, name: str, data: Dataset, threads: int):
        w = WORKLOADS[name]
        malloc = keep_freed_memory()
        torch.set_num_threads(threads)
        self.task, self.per_turn, self.round = task_of(w, data), w.rounds, 0
        s = w.settings
        model = plain_model(w, data.shape, data.classes)
        flop = anchor.flop_per_sample(model, data.shape, data.classes, s.batch_size)
        self.loop = anchor.PlainLoop(model, s.lr, s.momentum, s.weight_decay)
        self.about = {"processes": 1, "threads": threads, "malloc_fixed": malloc, "flop_per_sample": flop}
        self.work: list[list[anchor.Shard]] = []

    def ready(self) -> None:
        self.work = [anchor.shards(self.task, self.round + i) for i in range(self.per_turn)]
        self.round += self.per_turn

    def turn(self) -> Work:
        done = [self.loop.run(work, self.task.batch_size) for work in self.work]
        return Work(self.per_turn, sum(steps for steps, _ in done), sum(samples for _, samples in done))


class HeadOnly(NoSetup):
    """The phases of a recipe that do not train the body, ten epochs, for a few clients one after another."""

    def __init__(self, recipe: str, data: Dataset, cache: bool):
        set_threads(EngineOptions())
        self.recipe = parse(HEAD_RECIPES[recipe])
        task = task_of(WORKLOADS["w2"], data)
        self.task = task if cache else uncached(task)
        made = (
            self.recipe.personalise(1, task.lr(0)) if self.recipe.acting("personalise") else self.recipe.local_phases(1)
        )
        self.phases = [phase for phase in made if not self._moves_body(phase)]
        self.about = {"epochs": sum(phase.epochs for phase in self.phases)}

    def _moves_body(self, phase: Phase) -> bool:
        return any(phase.trains(name) for name in self.task.first_params(self.recipe) if in_body(name))

    def turn(self) -> Work:
        cast = rounds.cast_of(rounds.begin(self.recipe, self.task), self.recipe)
        samples = 0
        for k in self.task.everyone()[:HEAD_CLIENTS]:
            client = first_client(self.recipe, self.task, cast, k)
            for _ in personal_net(self.recipe, self.task, cast, client, self.phases):
                pass  # training happens between the stages
            samples += self.about["epochs"] * self.task.data.size(k)
        return Work(samples=samples)


class Calibration(Rounds):
    """CCVR after the last round: a survey of every client, then retraining the classifier on virtual features."""

    def turn(self) -> Work:
        rounds.finish(self.server, self.recipe, self.task, self.engine)
        return Work(samples=len(self.task.dataset.y))


class Forward(NoSetup):
    """One plain pass over the training data on all cores, which every calibration needs."""

    def __init__(self, data: Dataset, threads: int):
        keep_freed_memory()
        torch.set_num_threads(threads)
        self.data = data
        self.model = plain_model(WORKLOADS["whole"], data.shape, data.classes)
        self.about = {"processes": 1, "threads": threads}

    def turn(self) -> Work:
        d = self.data
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (d.mean, d.std))
        return Work(samples=anchor.forward(self.model, d.x, mean, std, d.scale))


class Peak(NoSetup):
    """The machine's peak performance on all cores: of large matrix products, and of multiply-adds in registers."""

    def __init__(self, threads: int):
        torch.set_num_threads(threads)
        self.a, self.b = torch.rand(GEMM, GEMM), torch.rand(GEMM, GEMM)
        self.about = {"threads": threads, "fma_missing": peak.why_missing()}

    def turn(self) -> Work:
        best = float("inf")
        for _ in range(GEMM_TIMES):
            start = time.perf_counter()
            torch.mm(self.a, self.b)
            best = min(best, time.perf_counter() - start)
        fma = None if self.about["fma_missing"] else peak.fma_gflops(self.about["threads"])
        return Work(gflops=2 * GEMM**3 / best / 1e9, fma_gflops=fma)


def subject(name: str, data: str, workers: int | None) -> Subject:
    """A subject by name.

    `anchor:w1`, `anchor:w1:1` on one thread, `headway:w2:moon`, `tuned:w2:fedavg`, `growth:1000`, `cached:fedrep`,
    `uncached:fedrep`, `ccvr`, `forward`, `peak`.
    """
    kind, _, rest = name.partition(":")
    count = cores()
    if kind == "peak":
        return Peak(count)
    torch.set_num_threads(1)  # a process in which torch has run several threads cannot fork workers
    x = images(data)
    makers: dict[str, Callable[[], Subject]] = {
        "anchor": lambda: Anchor(rest.partition(":")[0], x, int(rest.partition(":")[2] or count)),
        "headway": lambda: federation(rest, x, workers),
        "tuned": lambda: federation(rest, x, workers, tune=True),
        # the same number of processes for every N, given explicitly, as all clients share samples here
        "growth": lambda: Rounds("fedavg", growing_task(int(rest), x), workers or count, turns=5),
        "cached": lambda: HeadOnly(rest, x, cache=True),
        "uncached": lambda: HeadOnly(rest, x, cache=False),
        "ccvr": lambda: Calibration(CCVR, task_of(WORKLOADS["whole"], x), workers, turns=1),
        "forward": lambda: Forward(x, count),
    }
    made = makers[kind]()
    made.about["data"] = x.name
    return made


def federation(rest: str, data: Dataset, workers: int | None, tune: bool = False) -> Rounds:
    name, _, recipe = rest.partition(":")
    w = WORKLOADS[name]
    return Rounds(recipe, task_of(w, data), workers, w.rounds, tune)


def timed(made: Subject) -> dict[str, Any]:
    """One turn: its seconds, page faults and processor time of this process and its workers, load by other programs."""
    made.ready()
    before = used(os.getpid())
    start = time.perf_counter()
    work = made.turn()
    seconds = time.perf_counter() - start
    after = used(os.getpid())
    return asdict(work) | {
        "seconds": seconds,
        "cpu_seconds": after.cpu - before.cpu,
        "faults": after.faults - before.faults,
        "foreign": after.foreign_share(before),
    }


def main() -> None:
    name, data, workers = sys.argv[1:4]
    made = subject(name, data, None if workers == "auto" else int(workers))
    print(json.dumps(made.about), flush=True)
    try:
        for line in sys.stdin:
            assert line.strip() == "go"
            print(json.dumps(timed(made)), flush=True)
    finally:
        made.close()


if __name__ == "__main__":
    main()
