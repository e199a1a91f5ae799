"""What the user gave: the texts of options and arguments, read and checked."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
from headway.base.lazy import LazyModule
from headway.cli.options import RUN_OPTIONS, dashed
from headway.training.settings import Settings

if TYPE_CHECKING:
    from headway.cli import progress
    from headway.engines.ray import session
    from headway.runs import directory, runner
    from headway.runs import options as run_options
else:  # torch comes with them, and a mistyped option need not wait for it
    progress, session = LazyModule("headway.cli.progress"), LazyModule("headway.engines.ray.session")
    directory, runner = LazyModule("headway.runs.directory"), LazyModule("headway.runs.runner")
    run_options = LazyModule("headway.runs.options")

MOST_THREADS = 1024
EXAMPLES = {  # of an option without a default: what it takes, and an example
    "data_dir": ("a folder", "archives"),
    "train_size": ("a number", "1000"),
    "test_size": ("a number", "500"),
    "clients": ("a number", "20"),
    "weights": ("a file", "body.safetensors"),
    "clip_norm": ("a number", "10"),
    "seeds": ("seeds", "0,1,2"),
    "address": ("a cluster's address", "auto"),
    "watch": ("names", "norms,drift"),
    "out": ("a folder", "runs/mine"),
}


@dataclass(frozen=True)
class Given:
    """How the user wants a command to run."""

    options: run_options.Options
    seeds: list[int] | None
    out: Path | None
    json: bool


def given_options(given: Mapping[str, Any]) -> Given:
    """The options that say how a command runs."""
    for name in RUN_OPTIONS:
        check_not_empty(name, given[name])
    workers = workers_in(given["workers"])
    threads = number("threads", given["threads"], int, 1, MOST_THREADS) or 1
    engine = given["engine"] or "local"
    session.check_engine(engine, given["address"])
    store = given["store"] or "auto"
    if store not in ("auto", "memory", "disk"):
        raise ConfigError(f"store={store}: client states are kept in memory or on disk; use auto, memory or disk")
    seconds = number("checkpoint_seconds", given["checkpoint_seconds"], float, 0)
    options = run_options.Options(
        device=given["device"] or "cpu",
        threads=threads,
        workers=workers,
        engine=engine,
        address=given["address"],
        store=store,
        native=given["native"] or "auto",
        tune=bool(given.get("tune")),
        checkpoint_seconds=run_options.Options().checkpoint_seconds if seconds is None else seconds,
        overwrite=given["overwrite"],
        watch=given["watch"] or (),
        track=given.get("track") or (),
        progress=progress.progress_on_stderr(given["quiet"] or given["as_json"]),
    )
    return Given(options, seeds_in(given["seeds"], given.get("seed")), out_in(given["out"]), given["as_json"])


def task_values(given: Mapping[str, Any], known: Iterable[str] = tuple(Settings.model_fields)) -> dict[str, Any]:
    """The settings the user gave, from options and from --set; the same one twice must agree."""
    values = {name: given[name] for name in known if given.get(name) is not None}
    for item in given.get("set") or []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(f"set={item or repr(item)}: write key=value, such as --set lr=0.1")
        key = key.replace("-", "_")
        if key in Settings.model_fields and key not in known:
            raise ConfigError(f"{key}={value}: a partition is drawn without training; known: {', '.join(known)}")
        if key in RUN_OPTIONS:
            raise ConfigError(f"{key}={value}: it is no setting of the task; write {dashed(key)} {value}")
        if key in values and values[key] != value:
            raise ConfigError(f"{key}: it is given as {values[key]} and as {value}; give it once")
        field = Settings.model_fields.get(key)
        nothing = value.lower() in ("none", "null") and (field is None or field.default is None)  # else it is a word
        values[key] = None if nothing else value
    for name in Settings.model_fields:
        check_not_empty(name, values.get(name))
    return values


def check_not_empty(name: str, text: Any) -> None:
    """Refuse an empty value, which would stand for something only by accident."""
    if isinstance(text, str) and not text.strip():
        default = RUN_OPTIONS[name].default if name in RUN_OPTIONS else Settings.model_fields[name].default
        what, example = EXAMPLES.get(name) or ("a value", str(default))
        raise ConfigError(
            f"{name}={text!r}: it is empty; give {what}, such as {dashed(name)} {shlex.quote(example)}, or leave it out"
        )


def workers_in(text: str | None) -> int | None:
    """None: as many as fit the machine."""
    check_not_empty("workers", text)
    value: int | None = None if text in (None, "auto") else number("workers", text, int, 1, MOST_THREADS, "auto or ")
    return value


def out_in(text: str | None) -> Path | None:
    check_not_empty("out", text)
    return None if text is None else Path(text)


def out_file_in(text: str | None, example: str) -> str | None:
    """The file to write."""
    if text is not None and not text.strip():
        raise ConfigError(f"out={text!r}: it is empty; give a file, such as --out {example}, or leave it out")
    return text


def run_folder(text: str) -> Path:
    """The run directory a command works on."""
    if not text.strip():
        raise ConfigError(f"run={text!r}: it is empty; give the folder of a run, such as runs/mine")
    path = Path(text)
    directory.check_is_run(path)
    return path


def piece_in(text: str, kind: str, example: str) -> str:
    """What --with names."""
    if not text.strip():
        raise ConfigError(f"with={text!r}: it is empty; name {kind}, such as --with {example}")
    return text


def number(
    field: str, text: str | None, kind: type[int] | type[float], least: float, most: float | None = None, also: str = ""
) -> Any:
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= least or (most is not None and value > most):
        what = "a whole number" if kind is int else "a number"
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{field}={text}: {field} must be {also}{what} {limit}")
    return value


def seeds_in(text: str | None, seed: str | None) -> list[int] | None:
    check_not_empty("seeds", text)
    if text is None:
        return None
    if seed is not None:
        raise ConfigError(f"seed={seed}: --seeds {text} is given too; use one of the two")
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"seeds={text}: write whole numbers with commas, such as 0,1,2") from None
    if min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds={text}: give each seed once and none below 0, such as 0,1,2")
    return seeds


def command_words() -> list[str]:
    """The command's own words as typed, without those that only decide what is printed."""
    return [word for word in sys.argv[2:] if word not in ("--quiet", "-q", "--json")]


@contextmanager
def hint_to_continue(overwrite: bool) -> Iterator[None]:
    """When one of several runs is stopped, say how all of them continue."""
    try:
        yield
    except Exception as stop:
        if not isinstance(stop, runner.Stopped):
            raise
        again = "the same command without --overwrite" if overwrite else "the same command again"
        stop.args = (f"{stop}, and {again} all of them",)
        raise
