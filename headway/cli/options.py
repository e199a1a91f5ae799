"""The options that commands share. Those of settings are made from `Settings`, so that the two cannot differ."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from headway.base.lazy import LazyModule
from headway.cli import completion
from headway.cli.help import Argument, Option
from headway.runs.watched import WATCHED

if TYPE_CHECKING:
    from headway.methods import plugins
    from headway.training import settings
else:  # the settings need pydantic, which takes longer to import than `headway list` to answer
    plugins, settings = LazyModule("headway.methods.plugins"), LazyModule("headway.training.settings")

KINDS = {"integer": "INTEGER", "number": "NUMBER", "string": "TEXT"}
PARTITION = (  # the settings that decide which client gets which data
    "data", "data_dir", "train_size", "test_size", "partition", "clients", "local_test", "merge_test", "seed",
)  # fmt: skip


class RunOption(NamedTuple):
    """An option that says how a command runs; it is no setting of the task."""

    about: str
    default: str | None = None
    kind: str = "TEXT"


RUN_OPTIONS = {
    "seeds": RunOption("several seeds, such as 0,1,2: mean and spread over them"),
    "device": RunOption("cpu, cuda or cuda:0", "cpu"),
    "threads": RunOption(
        "threads of the CPU work; results are bit-identical for one number of threads", "1", KINDS["integer"]
    ),
    "workers": RunOption("processes that train clients side by side: auto or a number; no bit depends on it", "auto"),
    "engine": RunOption("where clients run; ray: on a cluster; no bit depends on it", "local", "local|ray"),
    "address": RunOption("a running Ray cluster, HOST:PORT or auto; without it --engine ray starts a private one here"),
    "store": RunOption("where client states are kept; auto: memory, then disk", "auto", "auto|memory|disk"),
    "native": RunOption(
        "C++ code built here, where it helps and a compiler is found; off: torch alone (roundings differ)",
        "auto",
        "auto|off",
    ),
    "checkpoint_seconds": RunOption("seconds between checkpoints", "5", KINDS["number"]),
    "watch": RunOption(
        f"measure models at every evaluated round: all, or some of {','.join(WATCHED)}; results stay the same"
    ),
    "out": RunOption("the folder to write; a name under runs/ when not given"),
}
GROUPS = {  # heading of the help page -> options under it, in their order
    "Data and partition": (
        "data", "data_dir", "train_size", "test_size", "normalise", "augment", "partition", "clients", "local_test",
        "merge_test",
    ),
    "Model": ("model", "weights", "weights_head", "bn"),
    "Training": (
        "epochs", "batch_size", "lr", "lr_decay", "momentum", "weight_decay", "clip_norm", "persist_momentum", "amp",
    ),
    "Federation": (
        "rounds", "sampling", "aggregation", "seed", "seeds", "eval_every", "personal_from", "personal_clients",
    ),
    "How it runs": (
        "device", "threads", "workers", "engine", "address", "store", "native", "tune", "checkpoint_seconds",
    ),
    "Output": ("out", "overwrite", "watch", "track", "json", "quiet"),
}  # fmt: skip
COMPLETE = {
    "model": completion.model_names,
    "data": completion.data_names,
    "data_dir": completion.folders,
    "weights": completion.files,
    "out": completion.folders,
}


def shared_options() -> list[Option]:
    """An option for every setting and for how it runs. All are read as text and checked in one place."""
    options = {name: setting(name) for name in settings.Settings.model_fields}
    options |= {name: run_option(name) for name in RUN_OPTIONS}
    options["track"] = repeated(
        "track", "send the run's figures there too; may be repeated; no bit depends on it",
        metavar="tensorboard|mlflow|wandb", shell_complete=completion.words("tensorboard", "mlflow", "wandb"),
    )  # fmt: skip
    about = "time image layouts, C++ code, torch.compile; take the fastest (roundings differ)"
    options["tune"] = flag("--tune", about=about)
    options |= {"overwrite": overwrite("another run in --out"), "json": json_output(), "quiet": quiet()}
    grouped = []
    for title, names in GROUPS.items():
        for name in names:
            options[name].group = title
            grouped.append(options[name])
    return [*grouped, plugin(), repeated("set", "any setting as key=value; may be repeated")]


def options_without_settings() -> list[Option]:
    """How a command runs, where its settings come from elsewhere; --set changes single ones of them."""
    return [
        *map(run_option, RUN_OPTIONS),
        repeated("set", "change a setting, as key=value; may be repeated"),
        overwrite("another run in --out"),
        json_output(),
        quiet(),
    ]


def partition_options() -> list[Option]:
    """Only what means something where nothing is trained."""
    return [
        *map(setting, PARTITION),
        plugin(),
        text("--seeds", about="refused with a sentence of its own", hidden=True),
        text("--out", about="the folder to save to; nothing is saved when not given", shell_complete=COMPLETE["out"]),
        repeated("set", "any of these settings as key=value; may be repeated"),
        overwrite("another partition in --out"),
        json_output("print JSON on stdout"),
    ]


def setting(name: str) -> Option:
    """The option of a setting, with its choices, kind and default read off its declaration."""
    field, rule = settings.Settings.model_fields[name], schema()[name]
    about = f"{field.description}"
    if rule["type"] == "boolean":
        return Option(f"{dashed(name)}/--no-{dashed(name)[2:]}", name, about=about, default=None)
    choices = rule.get("enum", ())
    complete = completion.words(*choices) if choices else COMPLETE.get(name)
    words = [
        r["const"] for r in settings.Settings.model_json_schema()["properties"][name].get("anyOf", ()) if "const" in r
    ]
    kind = "|".join(choices or (KINDS[rule["type"]], *words))
    return text(dashed(name), name, about=about + shown(field.default), metavar=kind, shell_complete=complete)


def run_option(name: str) -> Option:
    way = RUN_OPTIONS[name]
    choices = way.kind.split("|") if "|" in way.kind else ()
    complete = completion.words(*choices) if choices else COMPLETE.get(name)
    return text(dashed(name), name, about=way.about + shown(way.default), metavar=way.kind, shell_complete=complete)


def text(*names: str, about: str, **more: Any) -> Option:
    return Option(*names, about=about, **{"metavar": "TEXT", "default": None} | more)


def flag(*names: str, about: str) -> Option:
    return Option(*names, about=about, is_flag=True, default=False)


def repeated(name: str, about: str, **more: Any) -> Option:
    return text(dashed(name), name, about=about, multiple=True, **more)


def overwrite(what: str) -> Option:
    return flag("--overwrite", about=f"replace {what}")


def json_output(about: str = "print JSON on stdout, no progress") -> Option:
    return flag("--json", "as_json", about=about)


def quiet() -> Option:
    return flag("--quiet", "-q", about="no progress")


def run_folder_argument() -> Argument:
    return Argument("path", metavar="RUN", about="the run directory", shell_complete=completion.folders)


def plugin() -> Option:
    """Loaded before any other option is read: recipes, models, data and partitions may be named by it."""

    def load(ctx: click.Context, param: click.Parameter, files: tuple[str, ...]) -> None:
        for file in files:
            plugins.load_plugin(file)

    about = "a Python file with methods, models, data sets or partitions of your own; may be repeated"
    return repeated(
        "plugin", about, metavar="FILE", shell_complete=completion.files, is_eager=True, expose_value=False,
        callback=load,
    )  # fmt: skip


def recipe_argument() -> Argument:
    about = "pieces joined with +, such as scaffold+fn or moon(mu=5)+ccvr"
    return Argument("recipe", about=about, shell_complete=completion.recipes)


def posthoc_options(examples: str) -> list[Option]:
    """The options of a further step of a finished run: which piece does it, and how it runs."""
    workers = "processes that work on clients side by side: auto or a number [auto]"
    return [
        text("--with", "piece", about=f"such as {examples}", required=True, shell_complete=completion.recipes),
        text("--workers", about=workers),
        plugin(),
        json_output(),
        quiet(),
    ]


def shown(default: Any) -> str:
    return "" if default is None else f" [{default}]"


def dashed(name: str) -> str:
    return "--" + name.replace("_", "-")


@functools.cache
def schema() -> dict[str, dict[str, Any]]:
    """Each setting's type and choices."""
    rules = settings.Settings.model_json_schema()["properties"]
    return {name: next(r for r in rule.get("anyOf", [rule]) if r["type"] != "null") for name, rule in rules.items()}
