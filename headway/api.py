"""What `import headway` offers beside its classes: run, compare and recipe. The commands of that name do the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.base.errors import ConfigError, nearest
from headway.base.lazy import LazyModule
from headway.base.text import digest, slug
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.methods import REGISTRY
from headway.methods import recipe as parse_recipe
from headway.methods.plugins import is_shared
from headway.methods.recorded_plugins import of_this_process
from headway.training.settings import Settings, settings

if TYPE_CHECKING:
    from torch import nn

    from headway import data as datasets
    from headway.data import Dataset
    from headway.runs import checks, runner
    from headway.runs import compare as comparing
    from headway.runs import options as run_options
    from headway.runs.compare import Comparison
    from headway.runs.options import Options, Progress
    from headway.runs.run import Run
    from headway.training import task as tasks
    from headway.training.task import Task
else:  # torch comes with them: recipe and settings are checked before
    nn, datasets, tasks = LazyModule("torch.nn"), LazyModule("headway.data"), LazyModule("headway.training.task")
    comparing, runner = LazyModule("headway.runs.compare"), LazyModule("headway.runs.runner")
    checks, run_options = LazyModule("headway.runs.checks"), LazyModule("headway.runs.options")

RUNS = Path("runs")


def recipe(pieces: str | Piece | Sequence[Piece]) -> Recipe:
    """The recipe that a text, a piece or several pieces describe.

    Args:
        pieces: Text such as `"scaffold+fn"` or `"moon(mu=5)+ccvr"`; or a piece; or a list of pieces, whose order
            carries no meaning. A piece may be of your own class. FedAvg is the base where none is named. A `Recipe` is
            given back as it is.

    Returns:
        The recipe. `str(recipe)` is its text, all settings included that differ from their defaults.

    Raises:
        RecipeError: A piece or a setting is unknown, or two pieces cannot be combined.

    >>> import headway
    >>> str(headway.recipe("fedprox(mu=0.1)+fn"))
    'fedavg+fn+prox(mu=0.1)'
    >>> from headway.methods.moon import Moon
    >>> str(headway.recipe([Moon(mu=5.0)]))
    'fedavg+moon(mu=5.0)'
    """
    if isinstance(pieces, str):
        return parse_recipe(pieces)
    if isinstance(pieces, Recipe):
        return pieces
    if isinstance(pieces, Piece):
        return REGISTRY.sum_of([pieces])
    if isinstance(pieces, list | tuple) and pieces and all(isinstance(p, Piece) for p in pieces):
        return REGISTRY.sum_of([q for p in pieces for q in (p.pieces if isinstance(p, Recipe) else (p,))])
    raise ConfigError(
        f"recipe={pieces!r}: give text such as 'scaffold+fn', a piece, a list of pieces, or a headway.Recipe"
    )


def run(
    recipe: str | Piece | Sequence[Piece],
    *,
    data: str | Path | Dataset = "digits",
    data_dir: str | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
    normalise: Literal["dataset", "half", "imagenet", "none"] = "dataset",
    augment: str = "none",
    partition: str = "dir(0.1)",
    clients: int | None = None,
    local_test: str = "shard",
    merge_test: bool = False,
    model: str | nn.Module | Callable[..., nn.Module] = "auto",
    weights: str | None = None,
    weights_head: bool = False,
    bn: Literal["auto", "running", "batch", "group"] = "auto",
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 0.05,
    lr_decay: str | float = "1",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    persist_momentum: bool = False,
    amp: bool = False,
    rounds: int = 20,
    sampling: float = 1.0,
    aggregation: Literal["weighted", "uniform"] = "weighted",
    seed: int = 0,
    eval_every: int | Literal["auto"] = 1,
    personal_from: Literal["global", "calibrated"] = "global",
    personal_clients: int = 1000,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str = "cpu",
    threads: int | None = 1,
    workers: int | Literal["auto"] | None = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    store: Literal["auto", "memory", "disk"] = "auto",
    native: Literal["auto", "off"] = "auto",
    tune: bool = False,
    checkpoint_seconds: float = 5.0,
    watch: str | Sequence[str] = (),
    track: str | Sequence[str] = (),
    progress: Progress | None = None,
    options: Options | None = None,
    **unknown: Any,
) -> Run:
    """Train one recipe on one task, into a run directory. A stopped run of the same call is continued.

    Args:
        recipe: What `headway.recipe` takes: text, a piece, a list of pieces, a `Recipe`.
        data: A name of `headway list data`, a path to .npz, .csv, .parquet or an image folder, or a `Dataset`.
        data_dir: Folder with the data set's own archives.
        train_size: Take a fixed subset of this many training samples.
        test_size: Take a fixed subset of this many test samples.
        normalise: Statistics by which inputs are normalised.
        augment: Augmentation such as `"crop(4)+flip"`, `"cutout(16)"`, `"rotate(15)"`.
        partition: `"iid"`, `"dir(a)"`, `"shard(s)"`, `"classes(n)"`, `"natural"`, or a saved partition file.
        clients: Number of clients, K. None: 20, or as many as a natural or saved partition has.
        local_test: What clients test on. `"shard"`: the test set with their labels; `"0.3"`: that share of their own
            data, held out; `"none"`.
        merge_test: Partition training and test data together.
        model: A name of `headway list models`, `"file.py:Name"`, a network, its class, or a function that makes it.
        weights: safetensors file from which the body starts.
        weights_head: The classifier starts from `weights` too.
        bn: Normalisation layers. `"auto"`: as the model's paper has them.
        epochs: Local epochs, E.
        batch_size: Local batch size, B.
        lr: Client learning rate, eta.
        lr_decay: Factor a round (`0.99`), or factor@rounds (`"0.1@160,240"`).
        momentum: Client momentum, reset every round.
        weight_decay: Weight decay on every trained parameter.
        clip_norm: Largest gradient norm of a local step.
        persist_momentum: Clients keep their momentum buffers from round to round.
        amp: Forward and backward passes in bfloat16 where that is safe; for `device="cuda"`.
        rounds: Rounds, T.
        sampling: Share of the clients that train in a round.
        aggregation: `"weighted"`: clients count by their samples; `"uniform"`: all alike.
        seed: Decides partition, sampling, first weights and the order of the data.
        eval_every: Evaluate after every so many rounds, and after the last. `"auto"`: so many that it takes
            a fifth of the time at most.
        personal_from: The model that clients personalise: the global or the calibrated one.
        personal_clients: Evaluate at most this many clients personally.
        out: The run directory. None: a folder under `runs/` named after the request.
        overwrite: Replace another run in `out`.
        device: `"cpu"`, `"cuda"` or `"cuda:0"`.
        threads: Threads of the CPU work. Results are bit-identical for one number of threads.
        workers: Processes that train clients side by side; `"auto"` or None: one a core. No bit depends on it.
        engine: Where clients run: this machine, or a Ray cluster. No bit depends on it.
        address: A running Ray cluster, HOST:PORT or auto. None: `engine="ray"` starts a private one.
        store: Where client states are kept. `"auto"`: in memory, then on disk.
        native: Layers in C++ that is built here: `"auto"` where they help and a compiler is found, `"off"` never;
            roundings differ.
        tune: Time several ways to run the model and take the fastest; roundings differ between them.
        checkpoint_seconds: Write a checkpoint after a round when the last one is older.
        watch: What to measure on the models at every evaluated round: `"all"`, or names such as `"norms,drift"`.
        track: Other places for the run's figures: `"tensorboard"`, `"mlflow"`, `"wandb"`.
        progress: Receives the run's messages and rounds. None: nothing is printed.
        options: `device` to `progress` in one object; a keyword that differs from its default comes first.

    Returns:
        The finished run: `.summary`, `.metrics`, `.model()`, `.personal(k)`, `.report()`.

    Raises:
        HeadwayError: The request was wrong. The message is one sentence with field, value and fix.
        Stopped: Ctrl-C or SIGTERM came; the last whole round is saved, and the same call continues it.

    >>> import headway
    >>> run = headway.run("scaffold+fn", partition="dir(0.1)", clients=5, rounds=2, train_size=300, model="mlp_small")
    >>> run.summary["rounds"], run.metrics["round"]
    (2, [1, 2])
    >>> run.model()(run.task.dataset.x_test).shape[1]
    10
    """
    values, changed = _read(run, dict(locals()))
    given, made = recipe, _as_recipe(recipe)
    s = settings(values)
    how = _options(options, changed)
    _check_objects_reach(made, s, how)
    if isinstance(data, str) and isinstance(model, str):
        checks.check_before_loading(made, s)
    built = _task(s, data, model, how)
    folder = Path(out) if out is not None else default_out(_text(given, made), s)
    return replace(runner.execute(made, s, folder, how, task=built, objects=_objects(s, data, model, made)), task=built)


def compare(
    recipes: str | Piece | Sequence[str | Piece | Sequence[Piece]],
    *,
    seeds: Sequence[int] | int = (0,),
    data: str | Path | Dataset = "digits",
    data_dir: str | None = None,
    train_size: int | None = None,
    test_size: int | None = None,
    normalise: Literal["dataset", "half", "imagenet", "none"] = "dataset",
    augment: str = "none",
    partition: str = "dir(0.1)",
    clients: int | None = None,
    local_test: str = "shard",
    merge_test: bool = False,
    model: str | nn.Module | Callable[..., nn.Module] = "auto",
    weights: str | None = None,
    weights_head: bool = False,
    bn: Literal["auto", "running", "batch", "group"] = "auto",
    epochs: int = 1,
    batch_size: int = 32,
    lr: float = 0.05,
    lr_decay: str | float = "1",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    persist_momentum: bool = False,
    amp: bool = False,
    rounds: int = 20,
    sampling: float = 1.0,
    aggregation: Literal["weighted", "uniform"] = "weighted",
    eval_every: int | Literal["auto"] = 1,
    personal_from: Literal["global", "calibrated"] = "global",
    personal_clients: int = 1000,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str = "cpu",
    threads: int | None = 1,
    workers: int | Literal["auto"] | None = 1,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    store: Literal["auto", "memory", "disk"] = "auto",
    native: Literal["auto", "off"] = "auto",
    tune: bool = False,
    checkpoint_seconds: float = 5.0,
    watch: str | Sequence[str] = (),
    track: str | Sequence[str] = (),
    progress: Progress | None = None,
    options: Options | None = None,
    **unknown: Any,
) -> Comparison:
    """Train several recipes under several seeds on one task. Runs that are finished in `out` are taken as they are.

    Args:
        recipes: The recipes, each as `headway.run` takes it; a single one need not stand in a list.
        seeds: The seeds, each once; every recipe is run under every seed.
        out: The folder of the runs and the leaderboard. None: a folder under `runs/` named after the request.

    Every other argument is that of `headway.run`.

    Returns:
        The leaderboard: rows by the global accuracy after the last round, with mean and spread over the seeds.

    Raises:
        HeadwayError: The request was wrong. The message is one sentence with field, value and fix.
        Stopped: Ctrl-C or SIGTERM came; the same call continues all runs.

    >>> import headway
    >>> table = headway.compare(["fedavg", "fedprox(mu=0.1)"], seeds=[0, 1], clients=3, rounds=1, train_size=200,
    ...                         model="mlp_small")
    >>> sorted(row.recipe for row in table.rows)
    ['fedavg', 'fedprox(mu=0.1)']
    >>> len(table["fedavg"].values["global"])
    2
    """
    values, changed = _read(compare, dict(locals()))
    listed = [recipes] if isinstance(recipes, str | Piece) else list(recipes)
    made = [_as_recipe(r) for r in listed]
    seeds = [seeds] if isinstance(seeds, int) else list(seeds)
    s = settings(values)
    how = _options(options, changed)
    for r in made:
        _check_objects_reach(r, s, how)
    texts = [_text(given, r) for given, r in zip(listed, made, strict=True)]
    folder = Path(out) if out is not None else default_comparison(texts, s, seeds)

    def make(seeded: Settings) -> Task:
        return _task(seeded, data, model, how)

    asked = [given if isinstance(given, str) else r for given, r in zip(listed, made, strict=True)]
    return comparing.compare(asked, s, seeds, folder, how, make, objects=_objects(s, data, model, *made))


# ---- recipes from objects
_as_recipe = recipe  # under a name that the parameter `recipe` does not hide


def _own_pieces(recipe: Recipe) -> list[str]:
    """The pieces that only this process can build: no text and no plugin names them."""
    return [p.name for p in recipe.pieces if not is_shared(p)]


def _check_objects_reach(recipe: Recipe, s: Settings, options: Options) -> None:
    """Workers of a cluster build recipe and model from their names; they are sent the samples of their clients."""
    if options.engine == "ray" and "model" in of_this_process(s.data, s.model, s.partition):
        raise ConfigError(
            f"engine=ray: the model '{s.model}' was registered in this process alone, and a cluster's workers cannot "
            f"build it; put its function into a file and call headway.load_plugin, or use engine='local'"
        )
    if options.engine == "ray" and (own := _own_pieces(recipe)):
        raise ConfigError(
            f"engine=ray: the piece '{own[0]}' exists in this process alone, and a cluster's workers cannot build it; "
            f"put its class into a file and call headway.load_plugin, or use engine='local'"
        )


def _text(given: object, made: Recipe) -> str:
    """The recipe as the name of its folder shows it."""
    return given if isinstance(given, str) else made.title


# ---- settings and options
def _read(function: Callable[..., Any], given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a call, and those options that differ from their defaults."""
    parameters = inspect.signature(function).parameters
    for name, value in given["unknown"].items():
        known = [p for p in parameters if p != "unknown"]
        raise ConfigError(f"{name}={value!r}: headway.{function.__name__} has no '{name}'; {nearest(name, known)}")
    values = {name: given[name] for name in Settings.model_fields if name in given}
    values |= _names(given["data"], given["model"])
    others = {"recipe", "recipes", "seeds", "out", "options", "unknown", *values}
    asked = {name: given[name] for name in parameters if name not in others}
    changed = {
        name: value for name, value in asked.items()
        if value != parameters[name].default or isinstance(value, bool) != isinstance(parameters[name].default, bool)
    }  # fmt: skip
    return values, changed


def _options(options: Options | None, changed: Mapping[str, Any]) -> Options:
    return replace(options or run_options.Options(), **changed)


def _task(s: Settings, data: Any, model: Any, options: Options) -> Task:
    dataset = data if isinstance(data, datasets.Dataset) else None
    return tasks.build(s, dataset=dataset, model=None if isinstance(model, str) else model, device=options.device)


def _objects(s: Settings, data: Any, model: Any, *recipes: Recipe) -> list[str]:
    """Which parts of the request are Python objects that config.json can name but not describe."""
    registered = of_this_process(s.data, s.model, s.partition)
    parts = {
        "data": not isinstance(data, str | Path) or "data" in registered,
        "model": not isinstance(model, str) or "model" in registered,
        "recipe": any(_own_pieces(r) for r in recipes),
        "partition": "partition" in registered,
    }
    return [name for name, is_object in parts.items() if is_object]


def _names(data: Any, model: Any) -> dict[str, str]:
    """What config.json holds for objects: enough to recognise them, not to build them again."""
    if not isinstance(data, str | Path | datasets.Dataset):
        raise ConfigError(
            f"data={type(data).__name__}: give a name, a path, or headway.Dataset.of(x, y, x_test, y_test) for arrays"
        )
    named = {"data": str(data) if isinstance(data, str | Path) else data.name}
    if isinstance(model, str):
        return named | {"model": model}
    if not callable(model):
        raise ConfigError(f"model={model!r}: give a name of `headway list models`, a network or its class")
    kind = type(model) if isinstance(model, nn.Module) else model
    return named | {"model": f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__name__)}"}


# ---- folders
def default_out(recipe: str, s: Settings, seeds: Sequence[int] = ()) -> Path:
    """A folder named after the request, so that the same request finds its own run again."""
    request = [recipe, s.model_dump(), *([list(seeds)] if seeds else [])]
    return RUNS / f"{slug(recipe)}-{slug(Path(s.data).stem)}-{digest(request)}"


def default_comparison(recipes: Sequence[str], s: Settings, seeds: Sequence[int]) -> Path:
    return RUNS / f"compare-{digest([list(recipes), s.model_dump(), list(seeds)])}"
