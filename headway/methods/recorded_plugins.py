"""The plugins of a run: recorded in its config.json with their SHA-256, so that resume finds them again.

Workers on a cluster are sent their source.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, PluginError
from headway.base.registered import PARTS, discover, is_of_this_process, registering
from headway.base.wording import plugin_given
from headway.core.recipe import Recipe
from headway.data.partitions import spec as partitions
from headway.methods.plugins import (
    PLUGINS,
    Plugin,
    forget,
    known_names,
    load_file,
    pieces_in,
    register,
    register_functions,
)

SHOWN = 16  # digits of a SHA-256 in an identity


def used_by(recipe: Recipe, data: str, model: str, partition: str) -> list[Plugin]:
    """The plugins that a request needs."""
    named = {p.name for p in recipe.pieces}, {model}, {data}, {partitions.name_of(partition)}
    needed = dict(zip(PARTS, named, strict=True))
    return [p for p in PLUGINS.values() if any(needed[part] & set(p.brings[part]) for part in PARTS)]


def of_this_process(data: str, model: str, partition: str) -> list[str]:
    """Which of data, model and partition were registered in this process, so that no other one can find them."""
    names = {"data": ("data", data), "model": ("models", model)}
    names["partition"] = ("partitions", partitions.name_of(partition))
    return [setting for setting, (part, name) in names.items() if is_of_this_process(part, name)]


# ---- identity


def identity(plugins: Iterable[Plugin]) -> dict[str, str]:
    """What tells the plugins of two runs apart, whatever their names; empty where there are none."""
    told = {p.sha256[:SHOWN] for p in plugins}
    return {"plugins": ", ".join(sorted(told))} if told else {}


def hashes_in(text: object) -> list[str]:
    """The hashes in the identity of a run; runs of earlier versions have names in it too."""
    return sorted(set(re.findall(rf"\b[0-9a-f]{{{SHOWN}}}(?=, |$)", str(text))))


def with_names(text: object) -> str:
    """The hashes of an identity, each after the name of its plugin where that is loaded here."""
    names = {p.sha256[:SHOWN]: p.name for p in PLUGINS.values()}
    return ", ".join(f"{names[one]} {one}" if one in names else one for one in hashes_in(text)) or "none"


# ---- a run's plugins again


def restore(records: object, run: Path) -> None:
    """Load the plugins that a run's config.json names; PluginError says what is missing."""
    for record in _records(records):
        if _is_known(record):
            continue
        if "package" in record or _is_importable(record):
            _import(record, str(run))
        elif (place := _place(str(record.get("file")), run)) is not None:
            load_file(place, functions=record.get("functions"))
        if not _is_known(record):
            file = record.get("file", "")
            package = f"install the package {record.get('package')}"
            fix = f"put it back, or name it: {plugin_given(Path(str(file)).name)}" if file else package
            raise PluginError(f"{run} needs {_told(record)}, which is not there (paths start at {Path.cwd()}); {fix}")


def check_unchanged(records: object, run: Path) -> None:
    """Raise CheckpointError where a plugin of a run is another than the one it was made with."""
    for record in _records(records):
        if record.get("sha256") not in {p.sha256 for p in PLUGINS.values()}:
            raise CheckpointError(
                f"{run} was made from something else ({_told(record)} has changed since); put the old file of the "
                f"plugin back"
            )


# ---- workers on other machines


def sent(plugins: Iterable[Plugin]) -> list[dict[str, Any]]:
    """What a worker on another machine needs to have the same plugins."""
    return [p.record() | {"source": p.source, "file": p.file} for p in plugins]


def receive(messages: Sequence[Mapping[str, Any]]) -> None:
    """Load the plugins that a run sent to this worker."""
    for message in messages:
        held = _holder(message)
        if held is not None and held.sha256 == message["sha256"]:
            continue
        if message.get("package") or _is_importable(message):
            _import(message, "this run")
        else:
            if held is not None:
                forget(held)
            plugin = load_file(message["file"], message["source"], message.get("functions"))
            PLUGINS[str(Path(message["file"]).resolve())] = plugin
        found = _holder(message)
        if found is None or found.sha256 != message["sha256"]:
            raise PluginError(f"this run needs {_told(message)}, and here is none or another; install the same one")


# ---- records


def _records(records: object) -> list[Mapping[str, Any]]:
    return [r for r in records if isinstance(r, dict)] if isinstance(records, list) else []


def _import(record: Mapping[str, Any], who: str) -> None:
    try:
        discover()
        with registering(""):
            module = importlib.import_module(record["module"])
            for piece in pieces_in(module):
                if piece.name in record.get("pieces", ()):
                    register(piece)
            register_functions(module, record.get("functions", {}))
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        missing = f"install {record.get('package') or 'it'}"
        raise PluginError(f"{who} needs {_told(record)}, which cannot be imported ({said}); {missing}") from None


def _is_known(record: Mapping[str, Any]) -> bool:
    known = known_names()
    return all(set(record.get(part, ())) <= known[part] for part in PARTS)


def _holder(record: Mapping[str, Any]) -> Plugin | None:
    """The loaded plugin that brings what the record names."""
    return next(
        (p for p in PLUGINS.values() if all(set(record.get(part, ())) <= set(p.brings[part]) for part in PARTS)), None
    )


def _is_importable(record: Mapping[str, Any]) -> bool:
    try:
        return bool(record.get("module")) and importlib.util.find_spec(record["module"]) is not None
    except (ImportError, ValueError):
        return False


def _told(record: Mapping[str, Any]) -> str:
    """A plugin in words: its name and what it brings."""
    name = record.get("package") or Path(str(record.get("file", record.get("module", "?")))).name
    parts = [f"{part} {', '.join(map(str, record[part]))}" for part in PARTS if record.get(part)]
    return f"the plugin {name} ({'; '.join(parts)})"


def _place(file: str, run: Path) -> Path | None:
    """The file as it was named, or below a folder above the run: runs are used from other folders too."""
    path = Path(file)
    places = [path] if path.is_absolute() else [path, *(folder / path for folder in run.resolve().parents)]
    return next((p for p in places if p.is_file()), None)
