"""What a run is known by, and whether two runs are the same: for a folder, a config.json and a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.base.errors import CheckpointError
from headway.base.wording import option
from headway.methods import recorded_plugins
from headway.runs.directory import OWN_FILES, OWN_FOLDERS, another_out, is_finished, read_json
from headway.training.settings import Settings

if TYPE_CHECKING:
    from headway.core.recipe import Recipe
    from headway.methods.plugins import Plugin
    from headway.training.task import Task

Identity = Mapping[str, Any]
State = Literal["empty", "unfinished", "finished"]
HASHES = {  # a hash, and the setting whose value it is the hash of
    "data_hash": "data",
    "weights_hash": "weights",
    "model_hash": "model",
    "body_hash": "model",
    "partition_hash": "partition",
}
EXPLAINED_BY = {  # a hash says nothing new where one of these differs too
    "data_hash": ("data",),
    "weights_hash": ("weights",),
    "model_hash": ("model",),
    "body_hash": ("model", "model_hash", "weights", "weights_hash", "data_hash", "seed"),
    "partition_hash": ("partition", "clients", "seed", "data", "data_hash"),
}


def identity_of(recipe: Recipe, task: Task) -> dict[str, Any]:
    """Recipe, settings, and hashes of what settings only name. It is kept in config.json and in every checkpoint."""
    return {"recipe": str(recipe)} | task.fingerprint() | recorded_plugins.identity(plugins_of(recipe, task.settings))


def plugins_of(recipe: Recipe, s: Settings) -> list[Plugin]:
    """The plugins that bring the recipe's pieces, the data, the model or the partition."""
    return recorded_plugins.used_by(recipe, s.data, s.model, s.partition)


def differing(saved: Identity, here: Identity) -> list[str]:
    """The fields in which two identities differ, without hashes that another differing field explains.

    Where the version of headway that saved it did not know a field, a setting had its default, and a hash is unknown
    and not compared.
    """
    defaults = {key: field.get_default(call_default_factory=True) for key, field in Settings.model_fields.items()}
    known = defaults | dict(saved)
    differ = [key for key in {**saved, **here} if key in known and known[key] != here.get(key)]
    if "plugins" in differ and recorded_plugins.hashes_in(saved["plugins"]) == recorded_plugins.hashes_in(
        here.get("plugins")
    ):
        differ.remove("plugins")  # an earlier version recorded names too
    return [key for key in differ if not any(other in differ for other in EXPLAINED_BY.get(key, ()))]


def described(fields: list[str], saved: Identity, here: Identity) -> str:
    """A difference in words: both values of a setting; of a hash, what is not the same."""
    shown = recorded_plugins.with_names
    parts = [
        f"plugins: {shown(here.get(key))} here, {shown(saved.get(key))} there"
        if key == "plugins"
        else f"{HASHES[key]} {saved.get(HASHES[key])} is not the same"
        if key in HASHES
        else f"{key}: {saved.get(key)} there, {here.get(key)} here"
        for key in fields
    ]
    return ", ".join(parts[:3]) + (f" and {len(parts) - 3} more" if len(parts) > 3 else "")


def check_same(
    saved: Identity,
    here: Identity,
    what: str,
    fix: str | Callable[[list[str]], str],
    error: type[CheckpointError] = CheckpointError,
) -> None:
    """Raise where two identities differ: `what` is wrong, in which fields, and the `fix`, which may depend on them."""
    if fields := differing(saved, here):
        advice = fix if isinstance(fix, str) else fix(fields)
        raise error(f"{what} ({described(fields, saved, here)}); {advice}")


def state_of(out: Path, here: Identity, overwrite: bool) -> State:
    """What a folder holds of the run with this identity; any other run or file in it is refused.

    With `overwrite` another run is no reason to refuse, and nothing is continued.
    """
    if not (out / "config.json").exists():
        own = {*OWN_FILES, *OWN_FOLDERS}  # what a run killed in its first moment leaves
        foreign = [p.name for p in out.iterdir() if not p.name.startswith(".") and p.name not in own]
        if foreign:
            raise CheckpointError(
                f"out={out}: the folder is not empty ({foreign[0]}, ...) and holds no run; {another_out()}"
            )
        return "empty"
    config = read_json(out / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("identity"), dict):
        raise CheckpointError(f"out={out}: its config.json is not headway's, so nothing is replaced; {another_out()}")
    if overwrite:
        return "empty"
    replace = f"{another_out()}, or {option('overwrite', True)} to replace it"
    check_same(config["identity"], here, f"out={out}: it holds another run", replace)
    return "finished" if is_finished(out) else "unfinished"
