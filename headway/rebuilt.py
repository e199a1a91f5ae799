"""A run's task again, from its config.json: where its data are now, and the proof that nothing has changed since."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.data import DATASETS, load
from headway.data.files import SUFFIXES, split_column
from headway.data.partition_spec import saved
from headway.errors import CheckpointError, ModelError, RecipeError
from headway.methods import recipe as parse_recipe
from headway.recipes import Recipe
from headway.settings import Settings, settings
from headway.state import Server
from headway.task import Task, build

WITH_ITS_TASK = "in Python, use the run that headway.run gave back, whose task holds them"
BY_THE_SAME_CALL = "repeat the same call of headway.run, which continues it"  # what helps an unfinished run


def rebuilt(run: Path, config: Mapping[str, Any], device: str = "cpu", objects_fix: str = WITH_ITS_TASK) -> Task:
    """The task that a run's config describes; what was handed over in Python no config can describe."""
    s = settings(config["settings"])
    if not is_known(s) and "data" in handed_over(config):
        raise from_objects(run, config, objects_fix)
    place = data_place(run, s)
    if place is None and "objects" not in config and not looks_like_path(s.data):
        raise from_objects(run, config, objects_fix)  # it was made before such runs were marked
    if place is None:
        raise CheckpointError(
            f"data '{s.data}' of {run} is not there: paths start at {Path.cwd()}; go to the folder where the run was "
            f"made, or put the data back"
        )
    return build(s, dataset=None if place == s.data else load(place), device=device)


def named_as_before(config: Mapping[str, Any]) -> Recipe:
    """A run's recipe under the name it was asked for by, where that still means the same."""
    recipe = parse_recipe(config["recipe"])
    try:
        named = parse_recipe(str(config.get("label") or recipe))
    except RecipeError:
        return recipe
    return named if str(named) == str(recipe) else recipe


def completed(server: Server, recipe: Recipe, task: Task) -> Server:
    """What was saved, with the first values of statistics that an older version did not keep."""
    stats = task.first_stats(recipe) | server.stats
    return server if stats.keys() == server.stats.keys() else replace(server, stats=stats)


def handed_over(config: Mapping[str, Any]) -> list[str]:
    """Which of data and model were Python objects; config.json has no more than names of those."""
    marked = config.get("objects", [])
    return [str(part) for part in marked] if isinstance(marked, list) else []


def from_objects(run: Path, config: Mapping[str, Any], fix: str) -> CheckpointError:
    told = [f"{part} '{config['settings'].get(part)}'" for part in handed_over(config) or ["data"]]
    return CheckpointError(
        f"{run} was made from Python objects ({', '.join(told)}), which cannot be built from config.json alone; {fix}"
    )


def is_known(s: Settings) -> bool:
    return s.data in DATASETS


def looks_like_path(text: str) -> bool:
    return "/" in text or split_column(text)[0].name.lower().endswith(SUFFIXES)


def data_place(run: Path, s: Settings) -> str | None:
    """Where a run's data are: known by name, at their path, or at that path from a folder in which the run lies.

    A run stands below the folder it was started in unless --out said otherwise, so it can be used from anywhere.
    """
    path, _ = split_column(s.data)
    if is_known(s) or there(path):
        return s.data
    if path.is_absolute():
        return None
    return next((f"{folder}/{s.data}" for folder in run.resolve().parents if there(folder / path)), None)


def there(path: Path) -> bool:
    with suppress(OSError):  # a text too long for a file name
        return path.exists()
    return False


def identity_of(
    run: Path, config: Mapping[str, Any], recipe: Recipe, task: Task, objects_fix: str = WITH_ITS_TASK
) -> dict[str, Any]:
    """What a run is known by, here and now; a network that was handed over may not be found by its name."""
    try:
        return {"recipe": str(recipe)} | task.fingerprint()
    except ModelError:
        if "model" in handed_over(config):
            raise from_objects(run, config, objects_fix) from None
        raise


def check_same(
    run: Path, config: Mapping[str, Any], recipe: Recipe, task: Task,
    otherwise: str = "", objects_fix: str = WITH_ITS_TASK,
) -> dict[str, Any]:  # fmt: skip
    """The identity of a run, which must be what it was made with; `otherwise` is what helps besides."""
    here = identity_of(run, config, recipe, task, objects_fix)
    differ = {key: value for key, value in config["identity"].items() if here.get(key) != value}
    if not differ:
        return here
    objects = {"data_hash": "data", "body_hash": "model"}
    if any(objects.get(key) in handed_over(config) for key in differ):
        raise from_objects(run, config, objects_fix)
    raise CheckpointError(told_difference(run, task.settings, differ, here) + otherwise)


def told_difference(run: Path, s: Settings, differ: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What is not as it was when the run was made, in words; of hashes the one that the others follow from."""
    if changed := [key for key in differ if not key.endswith("_hash")]:
        pairs = [", ".join(f"{key}={of.get(key)}" for key in changed[:3]) for of in (here, differ)]
        return f"{run / 'config.json'} says {pairs[0]} and the run was made with {pairs[1]}; put that back"
    data, _ = split_column(data_place(run, s) or s.data)
    files = {"data_hash": data, "weights_hash": s.weights, "model_hash": s.model.rpartition(":")[0]}
    if "data_hash" in differ and is_known(s):
        return (
            f"data {s.data} is not what {run} was made from; use the files, or the version of headway, that it was "
            f"made with"
        )
    if file := next((files[key] for key in files if key in differ), None):
        if not there(Path(file)):
            return f"{file} of {run} is not there: paths start at {Path.cwd()}; go to the folder where the run was made"
        kind = "folder" if Path(file).is_dir() else "file"
        return f"{file} is not what {run} was made from (its contents changed): put the old {kind} back"
    if "body_hash" in differ:
        return f"model {s.model} has other first weights than {run} was made with; put the old network back"
    if file := saved(s.partition):
        return f"{file} is not what {run} was made from (its contents changed): put the old file back"
    return (
        f"partition {s.partition} gives clients other samples than {run} was made with; use the versions that its "
        f"config.json names"
    )
