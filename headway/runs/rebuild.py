"""Recipe and task of a run again, from its config.json, and the check that nothing has changed since."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, ModelError, RecipeError
from headway.base.wording import plugin_given
from headway.core.grammar import split_terms
from headway.core.recipe import Recipe
from headway.data import DATASETS, load
from headway.data.files import SUFFIXES, split_column
from headway.data.partitions.spec import PARTITIONS, name_of
from headway.data.partitions.spec import saved as partition_file
from headway.methods import REGISTRY, recorded_plugins
from headway.methods import recipe as parse_recipe
from headway.models import MODELS
from headway.runs.identity import Identity, check_same, differing, identity_of
from headway.training.settings import Settings, settings
from headway.training.task import Task, build

USE_THE_RUN = "in Python, use the run that headway.run gave back, whose task holds them"
REPEAT_THE_CALL = "repeat the same call of headway.run, which continues it"  # the fix for an unfinished run


def recorded_recipe(run: Path, config: Mapping[str, Any]) -> Recipe:
    """The recipe of a run, with the name the user gave it where that name still means the same."""
    recorded_plugins.restore(config.get("plugins"), run)
    if "recipe" in python_objects(config) and (missing := unknown_pieces(str(config["recipe"]))):
        raise CheckpointError(
            f"recipe={config['recipe']}: the piece '{missing[0]}' was a Python object, which cannot be built from "
            f"config.json; {REPEAT_THE_CALL}"
        )
    recipe = parse_recipe(config["recipe"])
    try:
        named = parse_recipe(str(config.get("label") or recipe))
    except RecipeError:
        return recipe
    return named if str(named) == str(recipe) else recipe


def unknown_pieces(text: str) -> list[str]:
    """The names in a recipe that no known piece has."""
    return [name for term in split_terms(text) if (name := term.split("(")[0]) not in REGISTRY.names()]


def recorded_task(run: Path, config: Mapping[str, Any], device: str = "cpu", objects_fix: str = USE_THE_RUN) -> Task:
    """The task that a config.json describes. It cannot describe Python objects: there `objects_fix` is the advice."""
    recorded_plugins.restore(config.get("plugins"), run)
    s = settings(config["settings"])
    check_registered(run, config, s, objects_fix)
    if not is_known(s) and "data" in python_objects(config):
        raise made_from_objects(run, config, objects_fix)
    place = data_place(run, s)
    if place is None and "objects" not in config and not looks_like_path(s.data):
        raise made_from_objects(run, config, objects_fix)  # made before config.json had the key `objects`
    if place is None:
        raise CheckpointError(
            f"data '{s.data}' of {run} is not there: paths start at {Path.cwd()}; go to the folder where the run was "
            f"made, or put the data back"
        )
    return build(s, dataset=None if place == s.data else load(place), device=device)


def task_of_models(run: Path, config: Mapping[str, Any]) -> Task:
    """The task that a run's models were trained in, for a look at them: with the same plugins."""
    recorded_plugins.restore(config.get("plugins"), run)
    recorded_plugins.check_unchanged(config.get("plugins"), run)
    return recorded_task(run, config)


def unchanged_task(
    run: Path,
    config: Mapping[str, Any],
    recipe: Recipe,
    task: Task | None = None,
    device: str = "cpu",
    fix: str = "",
    objects_fix: str = USE_THE_RUN,
) -> tuple[Task, dict[str, Any]]:
    """The task of a run and its identity, which must be the one it was made with; `fix` is added to the advice."""
    task = (task or recorded_task(run, config, device, objects_fix)).for_recipe(recipe)
    objects = python_objects(config)
    try:
        here = identity_of(recipe, task)
    except ModelError:
        if "model" in objects:
            raise made_from_objects(run, config, objects_fix) from None
        raise
    fields = differing(config["identity"], here)
    if ("data_hash" in fields and "data" in objects) or ("body_hash" in fields and "model" in objects):
        raise made_from_objects(run, config, objects_fix)
    s = task.settings
    check_same(
        config["identity"],
        here,
        f"{run} was made from something else",
        lambda fields: advice(run, s, fields, config["identity"]) + fix,
    )
    return task, here


def advice(run: Path, s: Settings, fields: list[str], saved: Identity) -> str:
    """How to restore what a run was made from; of several fields, the first of these."""
    if "plugins" in fields:
        return "put the old file of the plugin back"
    if changed := [key for key in fields if not key.endswith("_hash")]:
        values = ", ".join(f"{key}={saved.get(key)}" for key in changed[:3])
        return f"put {values} back into {run / 'config.json'}"
    if "data_hash" in fields and is_known(s):
        return "use the files, or the version of headway, that it was made with"
    data, _ = split_column(data_place(run, s) or s.data)
    files = {"data_hash": data, "weights_hash": s.weights, "model_hash": s.model.rpartition(":")[0]}
    if file := next((files[key] for key in files if key in fields), None):
        if not exists(Path(file)):
            return f"{file} is not there: paths start at {Path.cwd()}; go to the folder where the run was made"
        return f"the contents of {file} changed: put the old {'folder' if Path(file).is_dir() else 'file'} back"
    if "body_hash" in fields:
        return "its network has other first weights: put the old network back"
    if saved_in := partition_file(s.partition):
        return f"the contents of {saved_in} changed: put the old file back"
    return "clients get other samples: use the versions that its config.json names"


def python_objects(config: Mapping[str, Any]) -> list[str]:
    """Which of data, model and recipe were Python objects; config.json has only a name for those."""
    marked = config.get("objects", [])
    return [str(part) for part in marked] if isinstance(marked, list) else []


def made_from_objects(run: Path, config: Mapping[str, Any], fix: str) -> CheckpointError:
    names = config | config["settings"]
    parts = [f"{part} '{names.get(part)}'" for part in python_objects(config) or ["data"]]
    return CheckpointError(
        f"{run} was made from Python objects ({', '.join(parts)}), which cannot be built from config.json alone; {fix}"
    )


def check_registered(run: Path, config: Mapping[str, Any], s: Settings, fix: str) -> None:
    """Raise CheckpointError where data, model or partition was registered in the run's process and is unknown here."""
    tables: dict[str, tuple[str, Collection[str]]] = {
        "data": (s.data, DATASETS), "model": (s.model, MODELS), "partition": (name_of(s.partition), PARTITIONS),
    }  # fmt: skip
    registered = config.get("registered")
    for part in registered if isinstance(registered, list) else []:
        name, table = tables.get(part, ("", ()))
        if name and name not in table:
            raise CheckpointError(
                f"{run} needs the {part} '{name}', which was registered in a Python process and stands in no file that "
                f"config.json could name; {fix}, or name a file that registers it: {plugin_given('FILE.py')}"
            )


def is_known(s: Settings) -> bool:
    return s.data in DATASETS


def looks_like_path(text: str) -> bool:
    return "/" in text or split_column(text)[0].name.lower().endswith(SUFFIXES)


def data_place(run: Path, s: Settings) -> str | None:
    """Where the data of a run are: a known name, the path as given, or that path from a folder above the run.

    A run lies below the folder it was started in unless it was given another place, so it can be used from anywhere.
    """
    path, _ = split_column(s.data)
    if is_known(s) or exists(path):
        return s.data
    if path.is_absolute():
        return None
    return next((f"{folder}/{s.data}" for folder in run.resolve().parents if exists(folder / path)), None)


def exists(path: Path) -> bool:
    with suppress(OSError):  # a text too long for a file name
        return path.exists()
    return False
