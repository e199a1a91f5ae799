"""One run from settings to a finished run directory: rounds, metrics, checkpoints, the end figures."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway import conflicts, rounds
from headway.calibration import spec_of
from headway.checkpoint import Checkpoints
from headway.data import DATASETS
from headway.diagnostics.accuracy import global_score, personal_ids, received_score
from headway.engine.choice import engine_for, set_threads, store_for, workers_beside
from headway.engine.session import check_engine
from headway.errors import CheckpointError, EngineError, WidthError, to_copy
from headway.methods import recipe as parse_recipe
from headway.models import MODELS, body
from headway.opening import can_continue, clear, damaged_drawn_files, mend_drawn_files, write_head
from headway.outcome import Outcome
from headway.rebuilt import BY_THE_SAME_CALL, check_same, completed, named_as_before, rebuilt
from headway.recipes import Recipe
from headway.rundir import (
    Run,
    append,
    check_config,
    check_is_run,
    flush,
    is_done,
    is_whole_model,
    locked,
    prepare_folder,
    read_json,
    read_table,
    save_tensors,
    truncate,
)
from headway.settings import Settings
from headway.signals import signals_to
from headway.state import Broadcast, Report, Server
from headway.strict_json import strict
from headway.task import Task, build
from headway.tracking import Trackers, names_of
from headway.tree import stream
from headway.tuning import layout_for
from headway.values import write_atomic
from headway.watch import Watcher, watch_names


class Stopped(Exception):
    """The run was asked to stop; its last whole round is on disk."""

    def __init__(self, signum: int, path: Path, done: int):
        super().__init__(f"stopped after round {done}; {to_copy('resume', path)} continues it")
        self.exit_code = 128 + signum


class Progress:
    """What a run tells while it works; the base class is silent."""

    def begin(self, label: str, done: int, total: int) -> None: ...
    def client(self, done: int, total: int) -> None: ...
    def round(self, row: Mapping[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Options:
    """How a run is carried out; nothing here changes what is computed, threads and device aside."""

    device: str = "cpu"
    threads: int | None = 1  # of one process; bits depend on it, so it is 1 unless the user says otherwise
    workers: int | None = 1  # processes that train clients; None, or auto: one a core
    engine: str = "local"  # or ray
    address: str | None = None  # of a running Ray cluster: HOST:PORT or auto; None: a private one on this machine
    tune: bool = False  # choose the layout of images and torch.compile by a short timing; bits depend on the choice
    store: str = "auto"  # where clients' memory rests: memory, disk, or auto: memory up to a quarter of the machine's
    checkpoint_seconds: float = 5.0  # a checkpoint after a round when the last one is older
    overwrite: bool = False
    watch: str | Sequence[str] = ()  # what of the models is measured after every evaluated round (watch.py)
    track: tuple[str, ...] = ()  # who else follows the run: tensorboard, mlflow, wandb
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", workers_beside(self.threads, self.workers, self.engine))
        object.__setattr__(self, "watch", watch_names(self.watch))
        object.__setattr__(self, "track", names_of(self.track))  # a tracker that is not installed is refused at once

    def record(self) -> dict[str, Any]:
        """What config.json keeps of the engine and of who looks on, so that `resume` finds them again."""
        kept = {"address": self.address, "track": list(self.track) or None, "watch": list(self.watch) or None}
        return {"engine": self.engine} | {key: value for key, value in kept.items() if value is not None}


def execute(
    recipe: str,
    s: Settings,
    out: Path,
    options: Options | None = None,
    *,
    task: Task | None = None,
    objects: Sequence[str] = (),
) -> Run:
    """Run a recipe on a task into a directory. An unfinished run of the very same request is continued.

    `objects` are those of data and model that the task has as Python objects, which no config can name.
    """
    options = options or Options()
    parsed = parse_recipe(recipe)
    check_engine(options.engine, options.address)
    set_threads(options)
    if task is None:
        check_before_loading(parsed, s)
    task = (task or build(s, device=options.device)).for_recipe(parsed)
    check_fits(parsed, task.dim, task.classes, task.settings)
    conflicts.check_settings(parsed, s)
    identity = {"recipe": str(parsed)} | task.fingerprint()
    prepare_folder(out)
    with locked(out):
        for text in notes_of(parsed, task):
            options.progress.say(f"note: {text}")
        if begun := can_continue(out, identity, options.overwrite):
            started = read_json(out / "config.json")["options"]
            if tuple(started.get("watch", ())) != options.watch:
                options.progress.say("note: what is watched was settled when this run began, and stays so")
            options = replace(
                options, threads=started["threads"], watch=started.get("watch", ()),
                track=options.track or started.get("track"),
            )  # fmt: skip
            set_threads(options)
            task = task.in_layout(started.get("layout", task.layout))
            mend_drawn_files(out, task, options.progress.say)
            (out / "summary.json").unlink(missing_ok=True)  # of a run whose model is lost
        else:
            if (out / "summary.json").exists() and not options.overwrite:
                options.progress.say(f"note: {out} holds this run, finished; it runs again")
            if options.tune:
                task = task.in_layout(layout_for(task, say=options.progress.say))
                options.progress.say(f"note: of the ways to train this model here, {task.layout} is taken")
            clear(out)
            write_head(out, parsed, task, identity, options, objects)
        try:
            experiment = Experiment(parsed, task, out, identity, options)
        except EngineError:
            if not begun:  # a request that was refused leaves no run behind
                clear(out)
            raise
        return experiment.run()


def resume(
    out: Path, options: Options | None = None, task: Task | None = None, *, elsewhere: Mapping[str, Any] | None = None
) -> Run:
    """Continue a stopped run from its own config; a finished one is left as it is.

    `elsewhere` names another engine and address than it was started with: no bit depends on them.
    """
    out = Path(out)  # a string is welcome too
    check_is_run(out)
    config = read_json(out / "config.json")
    if elsewhere:
        check_engine(elsewhere["engine"], elsewhere["address"])
    check_config(config, out)
    finished = is_done(out) and is_whole_model(out / "model.safetensors")
    if finished:
        run = Run(out)
        _ = run.metrics  # what has lost some of its rounds is not left as it is without a word
        if not damaged_drawn_files(out):
            return run
    how = {key: config["options"][key] for key in ("device", "threads", "engine", "store")}
    how |= {key: config["options"].get(key) for key in ("address", "track")}
    how |= {"watch": config["options"].get("watch", ())} | dict(elsewhere or {})
    options = replace(options or Options(), overwrite=False, **how)
    check_engine(options.engine, options.address)
    parsed = named_as_before(config)
    set_threads(options)
    try:
        task = (task or rebuilt(out, config, options.device, BY_THE_SAME_CALL)).for_recipe(parsed)
    except CheckpointError as error:
        if not finished:
            raise
        options.progress.say(f"note: {' and '.join(damaged_drawn_files(out))} cannot be written again: {error}")
        return Run(out)
    task = task.in_layout(config["options"].get("layout", task.layout))
    elsewhere_anew = ", or make the run again in another folder"
    with locked(out, "run", "wait for it"):
        identity = check_same(out, config, parsed, task, elsewhere_anew, BY_THE_SAME_CALL)
        mend_drawn_files(out, task, options.progress.say)
        if finished:
            return Run(out)
        (out / "summary.json").unlink(missing_ok=True)  # its model is lost; the checkpoint has all that made it
        return Experiment(parsed, task, out, identity, options).run()


class Experiment:
    """A run in progress: it owns the directory's files and nothing of the method."""

    def __init__(self, recipe: Recipe, task: Task, out: Path, identity: Mapping[str, Any], options: Options):
        self.recipe, self.task, self.out, self.options = recipe, task, out, options
        self.checkpoints = Checkpoints(out / "checkpoint", identity)
        self.engine = engine_for(recipe, task, options, store_for(out, task, options), self._tick)
        self.ids = personal_ids(task)
        self.watcher = Watcher(recipe, task, self.engine.store, options.watch) if options.watch else None
        self.files = ("metrics.jsonl", "timings.jsonl", *(("watch.jsonl",) if options.watch else ()))
        self.trackers = Trackers(options.track, out)
        self.rows: list[dict[str, Any]] = []
        self.server: Server | None = None
        self.signal = self._deaths = 0
        self._saved, self._saved_round = time.monotonic(), -1
        self._clock = time.monotonic()

    def run(self) -> Run:
        total = self.task.settings.rounds
        try:
            self._restore()
            self.trackers.begin()
            seed = f", seed {self.task.seed}" if self.out.name.startswith("seed-") else ""  # one of several
            self.options.progress.begin(self.recipe.title + seed, len(self.rows), total)
            with signals_to(self._asked):
                self._clock = time.monotonic()
                server = rounds.run(
                    self.recipe, self.task, self.engine, total, self.server, [self.watch], stop=self._diverged
                )
                self._finish(server)
        except Interrupted:
            if self.server is not None:
                with signals_to(signal.SIG_IGN):  # who asks a second time would lose what the first asking saves
                    self._checkpoint(self.server)
            raise Stopped(self.signal, self.out, len(self.rows)) from None
        except KeyboardInterrupt:
            if not self.signal:
                raise
            raise Stopped(self.signal, self.out, max(0, self._saved_round)) from None  # what came later is run again
        finally:
            self.engine.close()
            self.trackers.close()
            self.options.progress.end()
        return Run(self.out)

    # ---- rounds
    def watch(self, server: Server, cast: Broadcast, reports: Sequence[Report]) -> None:
        """After a round: evaluate, write a line, save if it is time."""
        trained = time.monotonic() - self._clock
        s = self.task.settings
        row: dict[str, Any] = {"round": server.round}
        due = server.round % s.eval_every == 0 or server.round == s.rounds
        row |= self._scores(server) if due else dict.fromkeys(SCORES)
        losses = [r.loss for r in reports]
        row["train_loss"] = sum(losses) / len(losses)
        row["clients"] = len(reports)
        row["bytes_up"] = sum(r.nbytes() for r in reports)
        row["bytes_down"] = cast.nbytes() * len(reports)
        if self.recipe.acting("trace"):
            row["trace"] = self.recipe.trace(cast.w, reports, self.task.weights(reports))
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
        seen = self.watcher.row(server, cast, reports, self.options.progress.say) if self.watcher and due else {}
        if seen:
            append(self.out / "watch.jsonl", seen)
        self.server = server
        if server.round == s.rounds or time.monotonic() - self._saved >= self.options.checkpoint_seconds:
            self._checkpoint(server)
        self.options.progress.round(row | times)
        self.trackers.round(seen | row | times)
        self._clock = time.monotonic()

    def _scores(self, server: Server) -> dict[str, Any]:
        net = rounds.global_net(server, self.recipe, self.task)
        score = global_score(net, self.engine, self.task)
        own = received_score(server, self.recipe, self.task, self.engine, net, score, self.ids)
        values: tuple[float | None, ...] = (score.acc, score.loss, score.balanced)
        if not rounds.has_global_model(self.recipe, self.task):
            values = (None, None, None)
        values = (*values, own.mean, own.pooled)
        scores = dict(zip(SCORES, values, strict=True))
        if self.recipe.acting("shown"):
            raw = rounds.global_net(server, self.recipe, self.task, iterate=True)
            scores["iterate_acc"] = global_score(raw, self.engine, self.task).acc
        return scores

    def _diverged(self) -> bool:
        """No round can mend a model that is no longer made of numbers."""
        return bool(self.rows) and self.rows[-1]["diverged"]

    # ---- the end
    def _finish(self, server: Server) -> None:
        """Figures and model files; the summary is written last, so a run with one is a finished run."""
        if self._saved_round != server.round:
            self._checkpoint(server)
        outcome = Outcome(server, self.recipe, self.task, self.engine, self.ids, self.out, self.options.progress.say)
        summary, net = outcome.figures(self.rows)
        summary["bytes_up"] = sum(r["bytes_up"] for r in self.rows)
        summary["bytes_down"] = sum(r["bytes_down"] for r in self.rows)
        summary["seconds"] = round(sum(t["seconds"] for t in read_table(self.out / "timings.jsonl")), 3)
        save_tensors(net.tensors(), self.out / "model.safetensors", str(self.recipe), spec_of(net))
        write_atomic(self.out / "summary.json", json.dumps(strict(summary), indent=1, allow_nan=False) + "\n")
        shutil.rmtree(self.out / "working", ignore_errors=True)
        self.trackers.end()

    # ---- stopping and continuing
    def _checkpoint(self, server: Server) -> None:
        for name in self.files:
            flush(self.out / name)
        sizes = {name: (self.out / name).stat().st_size for name in self.files}
        self.checkpoints.save(server, self.engine.store, sizes)
        self._saved, self._saved_round = time.monotonic(), server.round

    def _restore(self) -> None:
        """The newest whole checkpoint; lines written after it are cut off, so no round appears twice."""
        found, damaged = self.checkpoints.load(self.task.device)
        for what in damaged:
            self.options.progress.say(f"checkpoint {what} is damaged and was passed over")
        if damaged and not found:
            self.options.progress.say("no whole checkpoint is left: training starts again at round 1")
        for name in self.files:
            truncate(self.out / name, found.extra.get(name, 0) if found else 0)
        if found:
            self.server, self._saved_round = completed(found.server, self.recipe, self.task), found.server.round
            found.fill(self.engine.store)
            self.rows = list(read_table(self.out / "metrics.jsonl"))

    def _tick(self, done: int, total: int) -> None:
        if self.signal:
            raise Interrupted
        self.options.progress.client(done, total)

    def _asked(self, signum: int, frame: object) -> None:
        """The first Ctrl-C or SIGTERM stops after the client at work; the second stops at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = signum


SCORES = ("global_acc", "global_loss", "balanced_acc", "personal_acc", "pooled_local_acc")


class Interrupted(Exception):
    """Raised between two clients when a signal asked the run to stop."""


def notes_of(recipe: Recipe, task: Task) -> list[str]:
    """What a user should know before the first round."""
    return [*recipe.advise(recipe, task.settings.rounds, task.settings.lr), *partition_notes(task)]


def partition_notes(task: Task) -> list[str]:
    """What a user should know about who got which data."""
    notes = task.partition.notes
    there = np.bincount(task.dataset.y.numpy(), minlength=task.classes)
    empty = [str(name) for name, n in zip(task.dataset.class_names, there, strict=True) if not n]
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    said = [f"data={task.dataset.name}: no training sample of class {', '.join(empty[:5])}{more}"] if empty else []
    if notes.get("dropped"):
        said.append(f"{task.partition.spec}: {notes['dropped']} training samples belong to no client and are left out")
    if notes.get("refilled"):
        said.append(f"{task.partition.spec}: {notes['refilled']} samples were moved to clients that had too few")
    if notes.get("note"):
        said.append(f"{task.partition.spec}: {notes['note']}")
    return [*said, task.dataset.note] if task.dataset.note and task.settings.data not in DATASETS else said


def check_before_loading(recipe: Recipe, s: Settings) -> None:
    """What is known of a named data set and model is enough to refuse a recipe before anything is downloaded."""
    entry = DATASETS.get(s.data)
    if entry is None or s.model not in MODELS or not entry.shape:
        return
    dim = body(s.model, entry.shape, bn=s.bn_of(s.model), seed_stream=stream(s.seed, "init")).dim
    check_fits(recipe, int(dim), entry.classes, s)  # type: ignore[arg-type]


def check_fits(recipe: Recipe, dim: int, classes: int, s: Settings) -> None:
    """The recipe's own checks; a body that is too narrow is named with its data."""
    try:
        recipe.check(recipe, dim, classes)
    except WidthError as error:
        raise WidthError(f"{error} (model={s.model}, data={s.data})") from None
