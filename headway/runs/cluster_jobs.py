"""Whole runs on a cluster: each is one job for a worker, and its run directory comes back as files.

A worker makes a run with the local engine in a temporary folder. Its files are written here, the summary last, so
a run directory is complete or unfinished. When one run fails, the others are kept.
"""

from __future__ import annotations

import json
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.base.errors import EngineError, HeadwayError
from headway.base.serialise import write_atomic
from headway.base.signals import signals_to
from headway.base.wording import either
from headway.core.recipe import Recipe
from headway.engines.choice import set_threads
from headway.engines.ray.engine import WorkerGroup, cpus_for, workers_for
from headway.engines.ray.session import Session
from headway.engines.ray.worker import Builder, identify, order_of
from headway.runs.checks import notes_of
from headway.runs.contents import clear, command_line
from headway.runs.directory import prepare_folder, write_json
from headway.runs.identity import identity_of, state_of
from headway.runs.lock import locked
from headway.runs.options import Options
from headway.runs.runner import Stopped, carried_out, execute
from headway.runs.tracking import replay
from headway.training.task import Task


@dataclass(frozen=True)
class Job:
    """One run to make: its recipe as the user wrote it and parsed, its task, its folder."""

    text: str
    recipe: Recipe
    task: Task
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.recipe.title} seed {self.task.seed}"


class Halted(Stopped):
    """The comparison was asked to stop; the finished runs are on disk."""

    def __init__(self, signum: int, done: int, total: int):
        again = either(python="call", command="command")
        Exception.__init__(self, f"stopped with {done} of {total} runs finished; the same {again} makes the others")
        self.exit_code = 128 + signum


def spread_runs(jobs: Sequence[Job], options: Options) -> None:
    """Make the runs on the cluster; if some fail, the others are made first and then an error is raised."""
    set_threads(options)
    threads, say = torch.get_num_threads(), options.progress.say
    device = jobs[0].task.accelerator
    jobs = [replace(job, task=carried_out(job.task, options)) for job in jobs]  # here, once: all workers use the same
    for note in dict.fromkeys(note for job in jobs for note in notes_of(job.recipe, job.task)):
        say(f"note: {note}")
    by_name = {job.name: job for job in jobs}
    faults: dict[str, tuple[str, int]] = {}
    session = Session(options.address, cpus_for(options.workers, threads))
    group = None
    try:
        count = workers_for(session, options.workers, threads, device, len(jobs))
        group = WorkerGroup(session, Runner, {"threads": threads}, count, device, threads, say)
        say(f"{len(jobs)} runs on {count} workers")
        with stopping(len(jobs)) as tick:
            answers = group.spread(
                "run", list(by_name), lambda name: (order(by_name[name], threads, options),), tick, "run"
            )
            for done, (name, (fault, code, files)) in enumerate(answers, 1):
                if fault:
                    faults[name] = fault, code
                else:
                    put_in_place(by_name[name], files, options)
                say(f"{name} {'failed: ' + fault if fault else 'is finished'} ({done} of {len(jobs)})")
    finally:
        if group is not None:
            group.close()
        session.close()
    if faults:
        name, (fault, code) = next(iter(faults.items()))
        error = EngineError(f"{len(faults)} of {len(jobs)} runs failed, the others are finished; {name}: {fault}")
        error.exit_code = code
        raise error


def order(job: Job, threads: int, options: Options) -> str:
    """All a worker needs to make the run, as JSON."""
    how = {"text": job.text, "store": options.store, "watch": list(options.watch)}
    return json.dumps(order_of(job.recipe, job.task, threads, whole=True) | how)


class Runner:
    """One worker of a comparison: it makes whole runs, each in a folder deleted once its files are sent."""

    def __init__(self, order: str) -> None:
        self.threads = json.loads(order)["threads"]
        self._builder = Builder()

    def ready(self) -> str:
        return identify()

    def identify(self) -> str:
        return identify()

    def run(self, order: str) -> tuple[str, int, list[tuple[str, bytes]]]:
        """(what was wrong with the request, its exit code, the run directory's files with the summary last)."""
        job = json.loads(order)
        try:
            _, task = self._builder.build(job)
            with tempfile.TemporaryDirectory(prefix="headway-run-") as folder:
                options = Options(**{key: job[key] for key in ("device", "threads", "store", "watch")})
                run = execute(job["text"], task.settings, Path(folder) / "run", options, task=task, ways=job)
                return "", 0, files_of(run.path)
        except HeadwayError as error:
            return f"on node {platform.node()}: {error}", error.exit_code, []


def files_of(run: Path) -> list[tuple[str, bytes]]:
    """A run directory as names and bytes; its summary, which makes a run a finished one, comes last."""
    names = [str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return [(name, (run / name).read_bytes()) for name in sorted(names, key=lambda n: (n == "summary.json", n))]


def put_in_place(job: Job, files: Sequence[tuple[str, bytes]], options: Options) -> None:
    """Write a run that a worker made as if it had been made here: with this command and this engine."""
    prepare_folder(job.folder)
    with locked(job.folder):
        state_of(job.folder, identity_of(job.recipe, job.task), options.overwrite)  # it may refuse the folder
        clear(job.folder)
        for name, data in files:
            path = job.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "config.json":
                config: dict[str, Any] = json.loads(data)
                config["options"] |= options.record()
                write_json(path, config | {"command": command_line()})
            else:
                write_atomic(path, data)
        replay(job.folder, options.track)


@contextmanager
def stopping(total: int) -> Iterator[Any]:
    """A tick that raises after the first Ctrl-C or SIGTERM; the second one stops at once."""
    asked: list[int] = []

    def ask(signum: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(signum)

    def tick(done: int, of: int) -> None:
        if asked:
            raise Halted(asked[0], done, total)

    with signals_to(ask):
        yield tick
