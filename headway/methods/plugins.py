"""Plugins: a user's own methods, models, data sets and partitions, from a file or from an installed package.

A run records the plugins it uses, with their SHA-256, in its config.json, so that resume finds them again; workers on a
cluster are sent their source.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headway.base.errors import HeadwayError, PluginError
from headway.base.python_files import line_of, module_of
from headway.base.wording import option
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.data.partitions import spec as partitions
from headway.data.sources import catalogue as datasets
from headway.methods import REGISTRY
from headway.models.catalogue import MODELS

GROUP = "headway.methods"  # the entry points that a package declares
PARTS = ("pieces", "models", "data", "partitions")
P = TypeVar("P", bound=type[Piece])


@dataclass(frozen=True)
class Plugin:
    """A file that brings pieces, models, data sets or partitions."""

    file: str  # as the user named it; of a package's module, its place on this machine
    source: str
    module: str = ""  # the name it can be imported by, where it has one
    package: str = ""  # the installed package it belongs to, with its version
    brings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # pieces, models, data, partitions -> names

    @property
    def name(self) -> str:
        return self.package or Path(self.file).name

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()

    def record(self) -> dict[str, Any]:
        """What config.json keeps: enough to find it again, and to tell whether it has changed."""
        place = {"package": self.package} if self.package else {"file": self.file}
        place |= {"module": self.module} if self.module else {}
        return place | {"sha256": self.sha256} | {part: list(names) for part, names in self.brings.items() if names}


PLUGINS: dict[str, Plugin] = {}  # the whole path, or the module -> what was loaded from it
FAULTS: list[str] = []  # one sentence for each package whose pieces cannot be used
_running: list[str] = []  # the plugins whose code runs now


def known_names() -> dict[str, set[str]]:
    own = {name for name, model in MODELS.items() if model.make is not None}
    pieces = set(REGISTRY.by_name) - REGISTRY.built_in
    return dict(zip(PARTS, (pieces, own, set(datasets.REGISTERED), set(partitions.REGISTERED)), strict=True))


def load_plugin(path: str | Path, source: str | None = None) -> Plugin:
    """Run a Python file and make known what it brings: each `Piece` it defines, and what it registers.

    The command line does the same with `--plugin FILE`. A file that is loaded again is run again if it has changed.

    Args:
        path: The file.
        source: Its text, where the file itself is not on this machine.

    Returns:
        The plugin; `brings` has the names.

    Raises:
        PluginError: There is no such file, it cannot be run, or it brings nothing.
        RecipeError: A piece's name is taken, or the class lacks what a piece needs.

    >>> import headway
    >>> from pathlib import Path
    >>> text = "import headway\\nclass Plain(headway.Piece):\\n    name, slot = 'plain', 'reg'\\n"
    >>> Path("plain.py").write_text(text) > 0
    True
    >>> headway.load_plugin("plain.py").brings["pieces"]
    ('plain',)
    >>> str(headway.recipe("scaffold+plain"))
    'scaffold+plain'
    """
    file, full = str(path), Path(path).resolve()
    if source is None:
        source = _source(file)
    held = PLUGINS.get(str(full))
    if held is not None and held.source == source:
        return held
    if held is not None:
        forget(held)
    before = known_names()
    _running.append(file)
    try:
        module = module_of(full, source)
        for piece in pieces_in(module):
            REGISTRY.register(piece)
    except HeadwayError as error:
        remove_new(before)
        raise type(error)(f"plugin={file}: {error}") from None
    except (Exception, SystemExit) as error:
        remove_new(before)
        line = line_of(error, full)
        where = f" at line {line}" if line else ""
        said = f"{type(error).__name__}: {' '.join(str(getattr(error, 'msg', error)).split())}"
        raise PluginError(f"plugin={file}: it cannot be run ({said}{where}); correct the file") from None
    finally:
        _running.pop()
    plugin = Plugin(file, source, brings=_new(before))
    if not any(plugin.brings.values()):
        raise PluginError(
            f"plugin={file}: it defines nothing that headway can use; define a class that derives from "
            f"headway.Piece, or call headway.register_model, register_dataset or register_partition in it"
        )
    PLUGINS[str(full)] = plugin
    return plugin


def register(piece: P) -> P:
    """Make a piece of one's own known by name, in recipes and in `headway.run`; also as a class decorator.

    Args:
        piece: A class that derives from `headway.Piece`. One that is defined again, as in a notebook, takes the place
            of its old self.

    Returns:
        The class.

    Raises:
        RecipeError: The name is taken, or the class lacks what a piece needs.

    Workers on this machine know it. A cluster's workers and `headway resume` know it if it stands in a file of its own
    that can be imported (not in the script that was started, nor in a notebook).

    >>> import headway
    >>> @headway.register
    ... class Halved(headway.Piece):
    ...     '''Clients make half of each step.'''
    ...     name, slot = "halved", "post"
    ...     def correct(self, g, local):
    ...         return g / 2
    >>> str(headway.recipe("fedprox+halved"))
    'fedavg+prox+halved'
    """
    REGISTRY.register(piece)
    if not _running:
        _record_module(piece)
    return piece


def pieces_in(module: ModuleType) -> list[type[Piece]]:
    """The pieces a module defines itself."""
    return [
        thing for thing in vars(module).values()
        if inspect.isclass(thing) and issubclass(thing, Piece) and thing.__module__ == module.__name__
        and "name" in vars(thing)
    ]  # fmt: skip


def place_in_plugin(error: BaseException) -> str:
    """`halved.py, line 8, in correct`: where a plugin's code raised this error, here or in a worker; "" if none did."""
    told = "".join(traceback.format_exception(error))  # an error of a worker has its traceback as the cause's text
    files = {str(Path(plugin.file).resolve()): plugin.file for plugin in PLUGINS.values()}
    found = [m for m in re.finditer(r'File "([^"]+)", line (\d+), in (\S+)', told) if m[1] in files]
    return f"{files[found[-1][1]]}, line {found[-1][2]}, in {found[-1][3]}" if found else ""


def forget(plugin: Plugin) -> None:
    """Remove what a plugin brought."""
    _remove(plugin.brings)
    for key in [key for key, held in PLUGINS.items() if held is plugin]:
        del PLUGINS[key]


def is_shared(piece: Piece) -> bool:
    """Whether another process can build this piece: it is built in, or a plugin brings it."""
    if REGISTRY.by_name.get(piece.name) is not type(piece):
        return False
    return piece.name in REGISTRY.built_in or any(piece.name in p.brings["pieces"] for p in PLUGINS.values())


# ---- of a run


def used_by(recipe: Recipe, data: str, model: str, partition: str) -> list[Plugin]:
    """The plugins that a request needs."""
    named = {p.name for p in recipe.pieces}, {model}, {data}, {partitions.name_of(partition)}
    needed = dict(zip(PARTS, named, strict=True))
    return [p for p in PLUGINS.values() if any(needed[part] & set(p.brings[part]) for part in PARTS)]


def restore(records: object, run: Path) -> None:
    """Load the plugins that a run's config.json names; PluginError says what is missing."""
    for record in records if isinstance(records, list) else []:
        if not isinstance(record, dict) or _is_known(record):
            continue
        if "package" in record or _is_importable(record):
            _import(record, str(run))
        elif (place := _place(str(record.get("file")), run)) is not None:
            load_plugin(place)
        if not _is_known(record):
            what = _told(record)
            file = record.get("file", "")
            given = option("plugin") + f" {Path(str(file)).name}" if file else f"the package {record.get('package')}"
            fix = f"put it back, or name it: {given}" if file else f"install {given}"
            raise PluginError(f"{run} needs {what}, which is not there (paths start at {Path.cwd()}); {fix}")


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
            plugin = load_plugin(message["file"], message["source"])
            PLUGINS[str(Path(message["file"]).resolve())] = plugin
        found = _holder(message)
        if found is None or found.sha256 != message["sha256"]:
            raise PluginError(f"this run needs {_told(message)}, and here is none or another; install the same one")


# ---- of packages


def load_entry_points() -> None:
    """Register the pieces of installed packages; a package that fails is told about and left out."""
    for point in entry_points(group=GROUP):
        try:
            _load_entry_point(point)
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist else point.value
            said = " ".join(str(error).split())
            FAULTS.append(f"the pieces of the package {package} are left out ({type(error).__name__}: {said})")


def _load_entry_point(point: EntryPoint) -> None:
    thing = point.load()
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    package = f"{point.dist.name} {point.dist.version}" if point.dist else module.__name__
    for piece in pieces_in(thing) if isinstance(thing, ModuleType) else [thing]:
        REGISTRY.register(piece)
        _record_module(piece, package)


def _record_module(piece: type[Piece], package: str = "") -> None:
    """Remember the importable module that a piece stands in, as a plugin."""
    name = piece.__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    here_alone = name == "__main__" or "<locals>" in piece.__qualname__ or name.startswith("headway_user_")
    if here_alone or not file or not Path(file).is_file():
        return
    held = PLUGINS.get(name) or Plugin(file, Path(file).read_text(encoding="utf-8"), name, package, _nothing())
    pieces = tuple(dict.fromkeys((*held.brings["pieces"], piece.name)))
    PLUGINS[name] = replace(held, brings={**held.brings, "pieces": pieces})


def _import(record: Mapping[str, Any], who: str) -> None:
    try:
        REGISTRY.discover()
        module = importlib.import_module(record["module"])
        for piece in pieces_in(module):
            if piece.name in record.get("pieces", ()):
                register(piece)
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        missing = f"install {record.get('package') or 'it'}"
        raise PluginError(f"{who} needs {_told(record)}, which cannot be imported ({said}); {missing}") from None


# ---- what is known


def _nothing() -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(PARTS, ())


def _new(before: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    now = known_names()
    return {part: tuple(sorted(now[part] - before[part])) for part in PARTS}


def remove_new(before: Mapping[str, set[str]]) -> None:
    """Remove what was registered since `known_names()` gave `before`."""
    _remove(_new(before))


def _remove(brings: Mapping[str, Iterable[str]]) -> None:
    removers: dict[str, Callable[[str], Any]] = {
        "pieces": REGISTRY.unregister,
        "models": MODELS.pop,
        "data": datasets.unregister_dataset,
        "partitions": partitions.unregister_partition,
    }
    for part, names in brings.items():
        for name in names:
            removers[part](name)


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


def _source(file: str) -> str:
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        missing = "it is no Python file" if path.exists() else f"there is no such file; paths start at {Path.cwd()}"
        raise PluginError(f"plugin={file}: {missing}; give the path of a Python file, such as my_method.py")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"plugin={file}: it cannot be read ({error}); give a Python file in UTF-8") from None


def identity(plugins: Iterable[Plugin]) -> dict[str, str]:
    """What tells the plugins of two runs apart; empty where there are none."""
    told = [f"{p.name} {p.sha256[:16]}" for p in plugins]
    return {"plugins": ", ".join(sorted(told))} if told else {}
