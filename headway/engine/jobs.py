"""A comparison over a cluster: every run is one piece of work, and its run directory comes back as files.

A run on a worker is a run of the local engine in a folder of its own. The files are written here, the summary last, so
a run directory is whole or unfinished. Whatever goes wrong with one run, the others are kept.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.engine.choice import set_threads
from headway.engine.cluster import Crew, cpus_for, workers_for
from headway.engine.remote import Runner, order_of
from headway.engine.session import Session
from headway.errors import EngineError
from headway.experiment import Options, Stopped, notes_of
from headway.opening import can_continue, clear
from headway.recipes import Recipe
from headway.rundir import command_line, locked, prepare_folder
from headway.task import Task
from headway.tracking import replay
from headway.tuning import layout_for
from headway.values import write_atomic


@dataclass(frozen=True)
class Job:
    """One run to be made: its recipe as the user wrote it, the task, where it goes."""

    text: str
    recipe: Recipe
    task: Task
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.recipe.title} seed {self.task.seed}"


class Halted(Stopped):
    """The comparison was asked to stop; the runs that were finished are on disk."""

    def __init__(self, signum: int, done: int, total: int):
        Exception.__init__(self, f"stopped with {done} of {total} runs finished; the same command makes the others")
        self.exit_code = 128 + signum


def spread_runs(jobs: Sequence[Job], options: Options) -> None:
    """Make the runs on the cluster; raises at the end if some could not be made."""
    set_threads(options)
    threads, say = torch.get_num_threads(), options.progress.say
    device = jobs[0].task.accelerator
    if options.tune:  # here, once for all: workers run what they are told, wherever they are
        jobs = [replace(job, task=job.task.in_layout(layout_for(job.task, say=say))) for job in jobs]
    for note in dict.fromkeys(note for job in jobs for note in notes_of(job.recipe, job.task)):
        say(f"note: {note}")
    by_name = {job.name: job for job in jobs}
    faults: dict[str, tuple[str, int]] = {}
    session = Session(options.address, cpus_for(options.workers, threads))
    crew = None
    try:
        count = workers_for(session, options.workers, threads, device, len(jobs))
        crew = Crew(session, Runner, {"threads": threads}, count, device, threads, say)
        say(f"{len(jobs)} runs on {count} workers")
        with stopping(len(jobs)) as tick:
            answers = crew.spread(
                "run", list(by_name), lambda name: (order(by_name[name], threads, options),), tick, "run"
            )
            for done, (name, (fault, code, files)) in enumerate(answers, 1):
                if fault:
                    faults[name] = fault, code
                else:
                    put_in_place(by_name[name], files, options)
                say(f"{name} {'failed: ' + fault if fault else 'is finished'} ({done} of {len(jobs)})")
    finally:
        if crew is not None:
            crew.close()
        session.close()
    if faults:
        name, (fault, code) = next(iter(faults.items()))
        error = EngineError(f"{len(faults)} of {len(jobs)} runs failed, the others are finished; {name}: {fault}")
        error.exit_code = code
        raise error


def order(job: Job, threads: int, options: Options) -> str:
    how = {"text": job.text, "store": options.store, "watch": list(options.watch)}
    return json.dumps(order_of(job.recipe, job.task, threads, whole=True) | how)


def put_in_place(job: Job, files: Sequence[tuple[str, bytes]], options: Options) -> None:
    """Write a run that was made elsewhere as if it had been made here."""
    prepare_folder(job.folder)
    with locked(job.folder):
        can_continue(job.folder, {"recipe": str(job.recipe)} | job.task.fingerprint(), options.overwrite)
        clear(job.folder)
        for name, data in files:
            path = job.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, config_here(data, options) if name == "config.json" else data)
        replay(job.folder, options.track)


def config_here(data: bytes, options: Options) -> str:
    """The worker's config.json with what is known only here: the command, the engine."""
    config: dict[str, Any] = json.loads(data)
    config["options"] |= options.record()
    config["command"] = command_line()
    return json.dumps(config, indent=1) + "\n"


@contextmanager
def stopping(total: int) -> Iterator[Any]:
    """A tick that raises once Ctrl-C or SIGTERM has come; the second stops at once."""
    asked: list[int] = []

    def ask(signum: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)

    def tick(done: int, of: int) -> None:
        if asked:
            raise Halted(asked[0], done, total)

    old: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread: whoever owns it handles signals
        old = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield tick
    finally:
        for n, handler in old.items():
            signal.signal(n, handler)
