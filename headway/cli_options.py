"""The options that commands share, made from the settings so that they cannot drift apart."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console

from headway.errors import ConfigError
from headway.settings import Settings

if TYPE_CHECKING:  # torch comes with it, and `headway run --help` need not wait for that
    from headway.experiment import Options

MOST_THREADS = 1024
PARTITION = (  # the settings that decide who gets which data
    "data", "data_dir", "train_size", "test_size", "partition", "clients", "local_test", "merge_test", "seed",
)  # fmt: skip
KINDS = {"integer": "INTEGER", "number": "NUMBER", "string": "TEXT"}


class Way(NamedTuple):
    """An option that says how a command is carried out."""

    about: str
    default: str | None = None
    kind: str = "TEXT"


HOW = {
    "seeds": Way("several seeds, such as 0,1,2: mean and spread over them"),
    "device": Way("cpu, cuda or cuda:0", "cpu"),
    "threads": Way(
        "threads of the CPU work; results are bit-identical for one number of threads", "1", KINDS["integer"]
    ),
    "workers": Way("processes that train clients side by side: auto or a number; no bit depends on it", "auto"),
    "engine": Way("where clients run; ray: on a cluster; no bit depends on it", "local", "local|ray"),
    "address": Way("a running Ray cluster, HOST:PORT or auto; without it --engine ray starts a private one here"),
    "store": Way("where clients' memory rests; auto: memory, then disk", "auto", "auto|memory|disk"),
    "checkpoint_seconds": Way("seconds between checkpoints", "5", KINDS["number"]),
    "watch": Way(
        "look into models every evaluated round: all, or some of norms,classifiers,collapse,consistency,drift,"
        "temperature,steps; results stay the same"
    ),
    "out": Way("the folder to write; a name under runs/ when not given"),
}
TRACK = "follow the run there too; may be repeated; no bit depends on it"
WANTED = {  # what stands for an option without a default: its kind and an example
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
class Ways:
    """How a command is carried out."""

    options: Options
    seeds: list[int] | None
    out: Path | None
    json: bool


def shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for every setting. All are read as text and checked in one place."""
    extra = [_setting(name) for name in Settings.model_fields]
    extra += [_way(name) for name in HOW]
    extra.append(_option("set", list[str] | None, None, "any setting as key=value; may be repeated"))
    extra.append(_option("track", list[str] | None, None, TRACK, metavar="tensorboard|mlflow|wandb"))
    extra.append(_flag("tune", "time image layouts, C++ steps, torch.compile; take the fastest (roundings differ)"))
    extra.append(_flag("overwrite", "replace another run in --out"))
    extra.append(_flag("json", "print JSON on stdout, no progress"))
    extra.append(_flag("quiet", "no progress", "-q"))
    return _with_options(command, extra)


def way_options(command: Callable[..., None]) -> Callable[..., None]:
    """How a command is carried out, where its settings come from elsewhere; --set changes single ones of them."""
    extra = [_way(name) for name in HOW]
    extra.append(_option("set", list[str] | None, None, "change a setting, as key=value; may be repeated"))
    extra.append(_flag("overwrite", "replace another run in --out"))
    extra.append(_flag("json", "print JSON on stdout, no progress"))
    extra.append(_flag("quiet", "no progress", "-q"))
    return _with_options(command, extra)


def partition_options(command: Callable[..., None]) -> Callable[..., None]:
    """Only what means something where nothing is trained."""
    extra = [_setting(name) for name in PARTITION]
    extra.append(_option("seeds", str | None, None, "refused with a sentence of its own", hidden=True))
    extra.append(_option("out", str | None, None, "the folder to save to; nothing is saved when not given"))
    extra.append(_option("set", list[str] | None, None, "any of these settings as key=value; may be repeated"))
    extra.append(_flag("overwrite", "replace another partition in --out"))
    extra.append(_flag("json", "print JSON on stdout"))
    return _with_options(command, extra)


def _with_options(command: Callable[..., None], extra: Iterable[inspect.Parameter]) -> Callable[..., None]:
    @functools.wraps(command)
    def wrapped(**values: Any) -> None:
        command(**values)

    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    hints = {p.name: list[str] if "list" in str(p.annotation) else str for p in own}
    parameters = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in own] + list(extra)
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _setting(name: str) -> inspect.Parameter:
    """The option of a setting, with its choices, kind and default read off its declaration."""
    field, rule = Settings.model_fields[name], schema()[name]
    about = f"{field.description}"
    if rule["type"] == "boolean":
        return _option(name, bool | None, None, about, f"{dashed(name)}/--no-{dashed(name)[2:]}", metavar=None)
    kind = "|".join(rule["enum"]) if "enum" in rule else KINDS[rule["type"]]
    return _option(name, str | None, None, about + _shown(field.default), metavar=kind)


def _way(name: str) -> inspect.Parameter:
    way = HOW[name]
    return _option(name, str | None, None, way.about + _shown(way.default), metavar=way.kind)


def _flag(name: str, about: str, *short: str) -> inspect.Parameter:
    return _option(name, bool, False, about, dashed(name), *short, metavar=None)


def _option(name: str, kind: Any, default: Any, about: str, *names: str, **more: Any) -> inspect.Parameter:
    shape: dict[str, Any] = {"metavar": "TEXT", "help": about, "show_default": False} | more
    option = typer.Option(default, *(names or (dashed(name),)), **shape)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _shown(default: Any) -> str:
    return "" if default is None else f" [{default}]"


def dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


@functools.cache
def schema() -> dict[str, dict[str, Any]]:
    """Each setting's type and choices."""
    rules = Settings.model_json_schema()["properties"]
    return {name: next(r for r in rule.get("anyOf", [rule]) if r["type"] != "null") for name, rule in rules.items()}


# ---- what was given
def task_values(given: dict[str, Any], known: Iterable[str] = tuple(Settings.model_fields)) -> dict[str, Any]:
    """The settings the user gave, from options and from --set; the same one twice must agree."""
    values = {name: given[name] for name in known if given.get(name) is not None}
    for item in given.get("set") or []:
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigError(f"set={item or repr(item)}: write key=value, such as --set lr=0.1")
        key = key.replace("-", "_")
        if key in Settings.model_fields and key not in known:
            raise ConfigError(f"{key}={value}: a partition is drawn without training; known: {', '.join(known)}")
        if key in HOW:
            raise ConfigError(f"{key}={value}: it is no setting of the task; write --{key.replace('_', '-')} {value}")
        if key in values and values[key] != value:
            raise ConfigError(f"{key}: it is given as {values[key]} and as {value}; give it once")
        field = Settings.model_fields.get(key)
        nothing = value.lower() in ("none", "null") and (field is None or field.default is None)  # else it is a word
        values[key] = None if nothing else value
    for name in Settings.model_fields:
        filled(name, values.get(name))
    return values


def filled(name: str, text: Any) -> None:
    """Refuse an empty value, which would stand for something only by accident."""
    if isinstance(text, str) and not text.strip():
        default = HOW[name].default if name in HOW else Settings.model_fields[name].default
        what, example = WANTED.get(name) or ("a value", str(default))
        raise ConfigError(
            f"{name}={text!r}: it is empty; give {what}, such as {dashed(name)} {shlex.quote(example)}, or leave it out"
        )


def how(given: dict[str, Any]) -> Ways:
    from headway.engine.session import check_engine
    from headway.experiment import Options
    from headway.progress import progress_for

    for name in HOW:
        filled(name, given[name])
    quiet = given["quiet"] or given["json"]
    workers = workers_of(given["workers"])
    threads = number("threads", given["threads"], int, 1, MOST_THREADS) or 1
    engine = given["engine"] or "local"
    check_engine(engine, given["address"])
    store = given["store"] or "auto"
    if store not in ("auto", "memory", "disk"):
        raise ConfigError(f"store={store}: clients' memory rests in memory or on disk; use auto, memory or disk")
    seconds = number("checkpoint_seconds", given["checkpoint_seconds"], float, 0)
    options = Options(
        device=given["device"] or "cpu",
        threads=threads,
        workers=workers,
        engine=engine,
        address=given["address"],
        store=store,
        tune=bool(given.get("tune")),
        checkpoint_seconds=Options().checkpoint_seconds if seconds is None else seconds,
        overwrite=given["overwrite"],
        watch=given["watch"] or (),
        track=given.get("track") or (),
        progress=progress_for(Console(stderr=True), quiet),
    )
    return Ways(options, seeds_of(given["seeds"], given.get("seed")), out_of(given["out"]), given["json"])


def workers_of(text: str | None) -> int | None:
    """None: as many as there is room for."""
    value: int | None = None if text in (None, "auto") else number("workers", text, int, 1, MOST_THREADS, "auto or ")
    return value


def engine_of(engine: str | None, address: str | None) -> dict[str, str | None]:
    """Where a run is continued, if elsewhere than where it began."""
    if address is not None:
        return {"engine": engine or "ray", "address": address}
    return {} if engine is None else {"engine": engine, "address": None}


def out_of(text: str | None) -> Path | None:
    filled("out", text)
    return None if text is None else Path(text)


def run_folder(text: str) -> Path:
    """The run directory a command works on."""
    from headway.rundir import check_is_run

    if not text.strip():
        raise ConfigError(f"run={text!r}: it is empty; give the folder of a run, such as runs/mine")
    path = Path(text)
    check_is_run(path)
    return path


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


def seeds_of(text: str | None, seed: str | None) -> list[int] | None:
    filled("seeds", text)
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
    """The command's own words as typed, without what only says how it shows itself."""
    return [word for word in sys.argv[2:] if word not in ("--quiet", "-q", "--json")]
