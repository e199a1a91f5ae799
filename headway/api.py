"""The Python twins of the commands: run, compare, recipe."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from headway import comparison as comparing
from headway.comparison import Comparison, slug
from headway.data import Dataset
from headway.errors import ConfigError
from headway.experiment import Options, check_before_loading, execute
from headway.methods import recipe as parse_recipe
from headway.recipes import Recipe
from headway.rundir import Run
from headway.settings import Settings, settings
from headway.task import Task, build

RUNS = Path("runs")


def run(
    recipe: str | Recipe,
    *,
    data: str | Dataset = "digits",
    model: str | nn.Module | Callable[..., nn.Module] = "auto",
    out: str | Path | None = None,
    options: Options | None = None,
    **task: Any,
) -> Run:
    """One federated training run. `data` and `model` may be names, paths or objects; `task` holds the settings."""
    options, task = split_options(options, task)
    recipe = text_of(recipe)
    s = settings(task | names(data, model))
    if isinstance(data, str) and isinstance(model, str):
        check_before_loading(parse_recipe(recipe), s)
    built = task_of(s, data, model, options)
    folder = Path(out) if out is not None else default_out(recipe, s)
    return replace(execute(recipe, s, folder, options, task=built, objects=objects(data, model)), task=built)


def compare(
    recipes: Sequence[str | Recipe],
    *,
    data: str | Dataset = "digits",
    model: str | nn.Module | Callable[..., nn.Module] = "auto",
    seeds: Sequence[int] | int = (0,),
    out: str | Path | None = None,
    options: Options | None = None,
    **task: Any,
) -> Comparison:
    """The same task for several recipes and seeds."""
    options, task = split_options(options, task)
    texts = [text_of(r) for r in ([recipes] if isinstance(recipes, str | Recipe) else recipes)]
    seeds = [seeds] if isinstance(seeds, int) else list(seeds)
    s = settings(task | names(data, model))
    folder = Path(out) if out is not None else default_comparison(texts, s, seeds)

    def make(seeded: Settings) -> Task:
        return task_of(seeded, data, model, options)

    return comparing.compare(texts, s, seeds, folder, options, make, objects=objects(data, model))


def text_of(recipe: str | Recipe) -> str:
    if not isinstance(recipe, str | Recipe):
        raise ConfigError(
            f"recipe={recipe!r}: give a recipe as text, such as 'scaffold+fn', or what headway.recipe gave"
        )
    return recipe if isinstance(recipe, str) else recipe.label or str(recipe)


def split_options(options: Options | None, given: dict[str, Any]) -> tuple[Options, dict[str, Any]]:
    """`workers=2` beside the settings says how the run is carried out; `options` holds the same in one object."""
    how = {f.name for f in fields(Options)} - {"progress"}
    ways = {name: value for name, value in given.items() if name in how}
    return replace(options or Options(), **ways), {k: v for k, v in given.items() if k not in how}


def task_of(s: Settings, data: Any, model: Any, options: Options) -> Task:
    dataset = data if isinstance(data, Dataset) else None
    return build(s, dataset=dataset, model=None if isinstance(model, str) else model, device=options.device)


def objects(data: Any, model: Any) -> list[str]:
    """Which of the two were handed in as objects."""
    return [name for name, value, plain in (("data", data, str | Path), ("model", model, str))
            if not isinstance(value, plain)]  # fmt: skip


def names(data: Any, model: Any) -> dict[str, str]:
    """What stands in config.json for objects handed in: enough to recognise them, not to rebuild them."""
    if not isinstance(data, str | Path | Dataset):
        raise ConfigError(
            f"data={type(data).__name__}: give a name, a path, or headway.Dataset.of(x, y, x_test, y_test) for arrays"
        )
    told = {"data": data.name if isinstance(data, Dataset) else str(data)}
    if isinstance(model, str):
        return told | {"model": model}
    if not callable(model):
        raise ConfigError(f"model={model!r}: give a name of `headway list models`, a network or its class")
    kind = type(model) if isinstance(model, nn.Module) else model
    return told | {"model": f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__name__)}"}


def default_out(recipe: str, s: Settings, seeds: Sequence[int] = ()) -> Path:
    """A folder named by the request, so that the same request finds its own run again."""
    request = [recipe, s.model_dump(), *([list(seeds)] if seeds else [])]
    return RUNS / f"{slug(recipe)}-{slug(Path(s.data).stem)}-{digest(request)}"


def default_comparison(recipes: Sequence[str], s: Settings, seeds: Sequence[int]) -> Path:
    return RUNS / f"compare-{digest([list(recipes), s.model_dump(), list(seeds)])}"


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
