"""One run, new or continued, to a finished run directory: rounds, metrics, checkpoints, the final figures."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headway.base.errors import CheckpointError, EngineError
from headway.base.signals import signals_to
from headway.base.strict_json import strict
from headway.base.wording import resume_call
from headway.core.recipe import Recipe
from headway.core.reports import Reports
from headway.core.state import Broadcast, Server, numbers
from headway.engines.choice import engine_for, set_threads, store_for
from headway.engines.ray.session import check_engine
from headway.methods import recipe as parse_recipe
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.runs.checkpoint import Checkpoint, Checkpoints
from headway.runs.checks import auto_notes, check_before_loading, check_fits, notes_of
from headway.runs.contents import clear, damaged_task_files, repair_task_files, start_folder
from headway.runs.directory import (
    NEW_FOLDER,
    append,
    check_config,
    flush,
    is_finished,
    prepare_folder,
    read_table,
    save_tensors,
    truncate,
    write_json,
)
from headway.runs.finish import Evaluated, Outcome
from headway.runs.identity import identity_of, state_of
from headway.runs.lock import locked
from headway.runs.monitor import Watcher
from headway.runs.options import Options, Progress
from headway.runs.rebuild import REPEAT_THE_CALL, recorded_recipe, unchanged_task
from headway.runs.run import Run
from headway.runs.tracking import Trackers
from headway.training import defaults, rounds
from headway.training.settings import Settings
from headway.training.task import Task, build
from headway.training.tuning import layout_for

__all__ = ["Experiment", "Options", "Progress", "Stopped", "carried_out", "execute", "resume"]


class Stopped(Exception):
    """The run was asked to stop; its last complete round is on disk."""

    def __init__(self, signum: int, path: Path, done: int):
        super().__init__(f"stopped after round {done}; {resume_call(path)} continues it")
        self.exit_code = 128 + signum


def execute(
    recipe: str | Recipe,
    s: Settings,
    out: Path,
    options: Options | None = None,
    *,
    task: Task | None = None,
    objects: Sequence[str] = (),
    ways: Mapping[str, Any] | None = None,
) -> Run:
    """Run a recipe on a task into a directory. An unfinished run of the same request is continued.

    `objects` are those of data and model that the task has as Python objects, which no config.json can name. `ways`:
    layout, chunk and cohort where they are chosen already (training/defaults.py).
    """
    options = options or Options()
    say = options.progress.say
    parsed = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    check_engine(options.engine, options.address)
    set_threads(options)
    if task is None:
        check_before_loading(parsed, s)
    task = (task or build(s, device=options.device)).for_recipe(parsed)
    check_fits(parsed, task.dim, task.classes, task.settings)
    identity = identity_of(parsed, task)
    prepare_folder(out)
    with locked(out):
        for text in [*notes_of(parsed, task), *auto_notes(s, task)]:
            say(f"note: {text}")
        state = state_of(out, identity, options.overwrite)
        if state == "unfinished":
            return continue_run(Run(out), parsed, task, identity, options)
        if state == "finished":
            say(f"note: {out} holds this run, finished; it runs again")
        task = carried_out(task, options) if ways is None else defaults.as_recorded(task, ways)
        clear(out)
        start_folder(out, parsed, task, identity, options, objects)
        try:
            experiment = Experiment(parsed, task, out, identity, options)
        except EngineError:
            clear(out)  # a refused request leaves no run behind
            raise
        return experiment.run()


def carried_out(task: Task, options: Options) -> Task:
    """The task in the ways in which a new run carries it out: by fixed rules, or with --tune by time."""
    native, say = options.native != "off", options.progress.say
    task = defaults.by_rule(task, native, say)
    if options.tune:
        task = task.in_layout(layout_for(task, say=say, use_native=native))
        say(f"note: of the ways to train this model here, {task.layout} is taken")
    return task


def resume(
    out: str | Path,
    options: Options | None = None,
    task: Task | None = None,
    *,
    workers: int | str | None = None,
    engine: str | None = None,
    address: str | None = None,
    checkpoint_seconds: float | None = None,
) -> Run:
    """Continue a stopped run from its own config.json, to the same bytes as without the stop.

    A finished run is left as it is. Device, threads, engine, store and trackers are those the run was started with.

    Args:
        out: The run directory.
        options: How it is carried out, such as `Options(progress=...)`. What the run recorded takes precedence.
        task: The task, for a run whose data or network were Python objects: the `task` of the run that headway.run
            gave back.
        workers: Processes that train clients, or "auto" for one a core; 1 unless given here or in `options`.
        engine: "local" or "ray", where it is to be another than before. No bit depends on it.
        address: A running Ray cluster, HOST:PORT or "auto"; it implies the engine ray.
        checkpoint_seconds: A checkpoint is written after a round when the last one is older than this.

    Returns:
        The finished run.

    Raises:
        CheckpointError: The folder holds no run, the run is damaged or in use, or what it was made from has changed.
        ConfigError: The engine or the workers cannot be used here.
        Stopped: Ctrl-C or SIGTERM stopped it again; the last complete round is on disk.

    >>> import headway, tempfile
    >>> from pathlib import Path
    >>> folder = tempfile.TemporaryDirectory()
    >>> run = headway.run("fedavg", model="mlp_small", rounds=1, clients=2, train_size=100, out=folder.name + "/run")
    >>> model = (run.path / "model.safetensors").read_bytes()
    >>> (run.path / "summary.json").unlink()  # as if it had been stopped before its end
    >>> resumed = headway.resume(run.path)
    >>> resumed.done, (resumed.path / "model.safetensors").read_bytes() == model
    (True, True)
    >>> folder.cleanup()
    """
    run = Run(Path(out))
    given: dict[str, Any] = {"workers": workers, "checkpoint_seconds": checkpoint_seconds}
    given = {key: value for key, value in given.items() if value is not None}
    if engine is not None or address is not None:
        given |= {"engine": engine or "ray", "address": address}
        check_engine(given["engine"], address)
    check_config(run.config, run.path)
    finished = is_finished(run.path)
    if finished:
        _ = run.metrics  # raises where rounds are lost
        if not damaged_task_files(run.path):
            return run
    options = (options or Options()).as_recorded(run.config["options"], **given)
    check_engine(options.engine, options.address)
    recipe = recorded_recipe(run.path, run.config)
    set_threads(options)
    try:
        task, identity = unchanged_task(
            run.path, run.config, recipe, task, options.device, f", or {NEW_FOLDER}", REPEAT_THE_CALL
        )
    except CheckpointError as error:
        if not finished:
            raise
        damaged = " and ".join(damaged_task_files(run.path))
        options.progress.say(f"note: {damaged} cannot be written again: {error}")
        return run
    with locked(run.path, "run", "wait for it"):
        return continue_run(run, recipe, task, identity, options)


def continue_run(run: Run, recipe: Recipe, task: Task, identity: Mapping[str, Any], options: Options) -> Run:
    """Continue a run whose identity was checked, under its lock, from its last checkpoint."""
    begun, say = run.config["options"], options.progress.say
    if tuple(begun.get("watch", ())) != options.watch:
        say("note: what is watched was chosen when this run began, and stays so")
    options = options.continuing(begun)
    set_threads(options)
    task = defaults.as_recorded(task, begun)
    repair_task_files(run.path, task, say)
    if is_finished(run.path):
        return run
    (run.path / "summary.json").unlink(missing_ok=True)  # the model is lost; the checkpoint has all that made it
    return Experiment(recipe, task, run.path, identity, options).run()


class Experiment:
    """A run in progress. It writes the files of the run directory and knows no method."""

    def __init__(self, recipe: Recipe, task: Task, out: Path, identity: Mapping[str, Any], options: Options):
        self.recipe, self.task, self.out, self.options = recipe, task, out, options
        self.progress: Progress = options.progress
        self.checkpoints = Checkpoints(out / "checkpoint", identity)
        self.engine = engine_for(recipe, task, options, store_for(out, task, options), self._tick)
        self.ids = personal_ids(task)
        self.watcher = Watcher(recipe, task, self.engine.store, options.watch) if options.watch else None
        self.files = ("metrics.jsonl", "timings.jsonl", *(("watch.jsonl",) if options.watch else ()))
        self.trackers = Trackers(options.track, out)
        self.rows: list[dict[str, Any]] = []
        self.server: Server | None = None
        self.known: tuple[int, Evaluated | None] = (-1, None)  # the last evaluated round and what it showed
        self.signal = self._deaths = 0
        self._saved, self._saved_round = time.monotonic(), -1
        self._clock = time.monotonic()

    def run(self) -> Run:
        total = self.task.settings.rounds
        try:
            self._continue_from(self.checkpoints.restore(self.recipe, self.task, self.progress.say))
            self.trackers.begin()
            seed = f", seed {self.task.seed}" if self.out.name.startswith("seed-") else ""  # one of several
            self.progress.begin(self.recipe.title + seed, len(self.rows), total)
            with signals_to(self._on_signal):
                self._clock = time.monotonic()
                server = rounds.run(
                    self.recipe, self.task, self.engine, total, self.server, [self.after_round], stop=self._diverged
                )
                self._finish(server)
        except Interrupted:
            if self.server is not None:
                with signals_to(signal.SIG_IGN):  # a second signal must not interrupt this write
                    self._checkpoint(self.server)
            raise Stopped(self.signal, self.out, len(self.rows)) from None
        except KeyboardInterrupt:
            if not self.signal:
                raise
            raise Stopped(self.signal, self.out, max(0, self._saved_round)) from None  # later rounds are run again
        finally:
            self.engine.close()
            self.trackers.close()
            self.progress.end()
        return Run(self.out)

    # ---- rounds
    def after_round(self, server: Server, cast: Broadcast, reports: Reports) -> None:
        """Evaluate, write a line, write a checkpoint if it is time."""
        trained = time.monotonic() - self._clock
        s = self.task.settings
        row: dict[str, Any] = {"round": server.round}
        due = server.round % int(s.eval_every) == 0 or server.round == s.rounds
        row |= self._scores(server) if due else dict.fromkeys(SCORES)
        losses = reports.numbers("loss")
        row["train_loss"] = sum(losses) / len(losses)
        row["clients"] = len(reports)
        row["bytes_up"] = reports.nbytes()
        row["bytes_down"] = cast.nbytes() * len(reports)
        if traced := numbers(server.kept):
            row["trace"] = traced
        row["diverged"] = not all(np.isfinite(v) for v in (row["global_loss"], row["train_loss"]) if v is not None)
        row = strict(row)
        self.rows.append(row)
        seconds = time.monotonic() - self._clock
        times = {"round": server.round, "seconds": round(seconds, 4), "train_seconds": round(trained, 4)}
        if self.engine.deaths > self._deaths:
            times["worker_deaths"] = self.engine.deaths - self._deaths
            self._deaths = self.engine.deaths
        append(self.out / "metrics.jsonl", row)
        append(self.out / "timings.jsonl", times)
        seen = self.watcher.row(server, cast, reports, self.progress.say) if self.watcher and due else {}
        if seen:
            append(self.out / "watch.jsonl", seen)
        self.server = server
        if server.round == s.rounds or time.monotonic() - self._saved >= self.options.checkpoint_seconds:
            self._checkpoint(server)
        self.progress.round(row | times)
        self.trackers.round(seen | row | times)
        self._clock = time.monotonic()

    def _scores(self, server: Server) -> dict[str, Any]:
        net = rounds.global_net(server, self.recipe, self.task)
        score = global_score(net, self.engine, self.task)
        own = received_score(server, self.recipe, self.task, self.engine, net, score, self.ids)
        self.known = (server.round, Evaluated(score, own))
        values: tuple[float | None, ...] = (score.acc, score.loss, score.balanced)
        if not rounds.has_global_model(self.recipe, self.task):
            values = (None, None, None)
        values = (*values, own.mean, own.pooled)
        scores = dict(zip(SCORES, values, strict=True))
        if "averaged model" in self.recipe.provides():
            raw = rounds.global_net(server, self.recipe, self.task, iterate=True)
            scores["iterate_acc"] = global_score(raw, self.engine, self.task).acc
        return scores

    def _diverged(self) -> bool:
        """Whether the last round gave a loss that is not finite: training on cannot repair the model."""
        return bool(self.rows) and self.rows[-1]["diverged"]

    # ---- the end
    def _finish(self, server: Server) -> None:
        """Write figures and model files; the summary last, so that a run with one is a finished run."""
        if self._saved_round != server.round:
            self._checkpoint(server)
        at, known = self.known
        known = known if at == server.round else None
        outcome = Outcome(server, self.recipe, self.task, self.engine, self.ids, self.out, self.progress.say, known)
        summary, net = outcome.figures(self.rows)
        summary["bytes_up"] = sum(r["bytes_up"] for r in self.rows)
        summary["bytes_down"] = sum(r["bytes_down"] for r in self.rows)
        summary["seconds"] = round(sum(t["seconds"] for t in read_table(self.out / "timings.jsonl")), 3)
        save_tensors(net.tensors(), self.out / "model.safetensors", str(self.recipe), net.head_spec)
        write_json(self.out / "summary.json", strict(summary))
        shutil.rmtree(self.out / "working", ignore_errors=True)
        self.trackers.end()

    # ---- stopping and continuing
    def _checkpoint(self, server: Server) -> None:
        for name in self.files:
            flush(self.out / name)
        sizes = {name: (self.out / name).stat().st_size for name in self.files}
        self.checkpoints.save(server, self.engine.store, sizes)
        self._saved, self._saved_round = time.monotonic(), server.round

    def _continue_from(self, found: Checkpoint | None) -> None:
        """Take over a checkpoint's state; lines written after it are cut off, so that no round appears twice."""
        if not found and any(self.checkpoints.folder.glob("round-*.json")):
            self.progress.say("no complete checkpoint is left: training starts again at round 1")
        for name in self.files:
            truncate(self.out / name, found.extra.get(name, 0) if found else 0)
        if found:
            self.server, self._saved_round = found.server, found.server.round
            found.fill(self.engine.store)
            self.rows = list(read_table(self.out / "metrics.jsonl"))

    def _tick(self, done: int, total: int) -> None:
        if self.signal:
            raise Interrupted
        self.progress.client(done, total)

    def _on_signal(self, signum: int, frame: object) -> None:
        """The first Ctrl-C or SIGTERM stops after the client being trained; the second stops at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = signum


SCORES = ("global_acc", "global_loss", "balanced_acc", "personal_acc", "pooled_local_acc")


class Interrupted(Exception):
    """Raised between two clients when a signal asked the run to stop."""
