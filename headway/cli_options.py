"""The options that `run`, `compare` and `partition` share, made from the settings so that they cannot drift apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from headway.errors import ConfigError
from headway.settings import Settings

if TYPE_CHECKING:  # torch comes with it, and `headway run --help` need not wait for that
    from headway.experiment import Options

MOST_THREADS = 1024
HOW = {
    "seeds": "several seeds, such as 0,1,2: mean and spread over them",
    "device": "cpu, cuda or cuda:0",
    "threads": "threads of the CPU work; results are bit-identical for one number of threads",
    "workers": "processes that train clients side by side: auto (one a core) or a number; no bit depends on it",
    "engine": "where clients run: local",
    "store": "where clients' memory rests: memory, disk, or auto: memory up to a quarter of the machine's",
    "checkpoint_seconds": "seconds between checkpoints",
    "out": "the run directory; a name under runs/ when not given",
}


@dataclass(frozen=True)
class Ways:
    """How a command is carried out."""

    options: Options
    seeds: list[int] | None
    out: Path | None
    json: bool


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting. All are read as text and checked in one place."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        command(**values)

    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = {p.name: list[str] if "list" in str(p.annotation) else str for p in own}
    extra = []
    for name, field in Settings.model_fields.items():
        default = field.default
        if isinstance(default, bool):
            extra.append(_option(name, bool | None, None, f"{field.description}", flag=True))
        else:
            shown = "" if default is None else f" [{default}]"
            extra.append(_option(name, str | None, None, f"{field.description}{shown}"))
    extra += [_option(name, str | None, None, about) for name, about in HOW.items()]
    extra.append(_option("set", list[str] | None, None, "any setting as key=value; may be repeated"))
    extra.append(_option("tune", bool, False, "time image layouts, take the faster; bits then depend on it", flag=True))
    extra.append(_option("overwrite", bool, False, "replace another run in --out", flag=True))
    extra.append(_option("json", bool, False, "print JSON on stdout, no progress", flag=True))
    extra.append(_option("quiet", bool, False, "no progress", flag=True))
    parameters = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own] + extra
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _option(name: str, kind: Any, default: Any, about: str, flag: bool = False) -> inspect.Parameter:
    dashed = "--" + name.replace("_", "-")
    shape = (f"{dashed}/--no-{name.replace('_', '-')}" if default is None else dashed) if flag else dashed
    option = typer.Option(default, shape, help=about, show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def task_values(given: dict[str, Any]) -> dict[str, Any]:
    """The settings the user gave, from options and from --set; the same one twice must agree."""
    values = {name: given[name] for name in Settings.model_fields if given.get(name) is not None}
    for item in given.get("set") or []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(f"set={item}: write key=value, such as --set lr=0.1")
        key = key.replace("-", "_")
        if key in values and values[key] != value:
            raise ConfigError(f"{key}: it is given as {values[key]} and as {value}; give it once")
        values[key] = None if value.lower() in ("none", "null") else value
    return values


def how(given: dict[str, Any]) -> Ways:
    from headway.experiment import Options
    from headway.progress import progress_for

    quiet = given["quiet"] or given["json"]
    auto = (given["workers"] or "auto") == "auto"
    workers = None if auto else number("workers", given["workers"], int, 1, MOST_THREADS)
    threads = number("threads", given["threads"], int, 1, MOST_THREADS) or 1
    if threads > 1:
        if workers not in (None, 1):
            raise ConfigError(
                f"workers={workers}: workers have one thread each and threads={threads}; give one of the two"
            )
        workers = 1
    engine = given["engine"] or "local"
    if engine != "local":
        raise ConfigError(f"engine={engine}: this version has the engine local; use --engine local")
    store = given["store"] or "auto"
    if store not in ("auto", "memory", "disk"):
        raise ConfigError(f"store={store}: clients' memory rests in memory or on disk; use auto, memory or disk")
    seconds = number("checkpoint_seconds", given["checkpoint_seconds"], float, 0)
    options = Options(
        device=given["device"] or "cpu",
        threads=threads,
        workers=workers,
        engine=engine,
        store=store,
        tune=bool(given.get("tune")),
        checkpoint_seconds=Options().checkpoint_seconds if seconds is None else seconds,
        overwrite=given["overwrite"],
        progress=progress_for(Console(stderr=True), quiet),
    )
    return Ways(options, seeds_of(given["seeds"], given.get("seed")), out_of(given["out"]), given["json"])


def out_of(text: str | None) -> Path | None:
    if text is not None and not text.strip():
        raise ConfigError(f"out={text}: the name is empty; give a folder, such as --out runs/mine, or leave it out")
    return None if text is None else Path(text)


def number(field: str, text: str | None, kind: type[int] | type[float], least: float, most: float | None = None) -> Any:
    if text is None:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not value >= least or (most is not None and value > most):
        what = "a whole number" if kind is int else "a number"
        limit = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{field}={text}: {field} must be {what} {limit}")
    return value


def seeds_of(text: str | None, seed: str | None) -> list[int] | None:
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
