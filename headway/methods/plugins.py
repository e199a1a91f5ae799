"""Plugins: a user's own methods, models, data sets and partitions, from a file or from an installed package.

What a run records of them, and how they are found again: recorded_plugins.py.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from headway.base import registered
from headway.base.errors import HeadwayError, PluginError
from headway.base.python_files import line_of, module_of
from headway.base.registered import FAULTS, PARTS, Registration, attribute_of, claim, held_by, registering
from headway.core.piece import Piece
from headway.data.partitions import spec as partitions
from headway.data.sources import catalogue as datasets
from headway.methods import REGISTRY
from headway.models.catalogue import MODELS, register_model, unregister_model

GROUP = "headway.methods"  # the entry points that a package declares
P = TypeVar("P", bound=type[Piece])


@dataclass(frozen=True)
class Plugin:
    """A file that brings pieces, models, data sets or partitions."""

    file: str  # as the user named it; of a package's module, its place on this machine
    source: str
    module: str = ""  # the name it can be imported by, where it has one
    package: str = ""  # the installed package it belongs to, with its version
    brings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # pieces, models, data, partitions -> names
    functions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # part -> name -> the module's function

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
        brings = {part: list(names) for part, names in self.brings.items() if names}
        functions = {part: dict(names) for part, names in self.functions.items()}
        return place | {"sha256": self.sha256} | brings | ({"functions": functions} if functions else {})


PLUGINS: dict[str, Plugin] = {}  # the whole path, or the module -> what was loaded from it


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
    return load_file(path, source)


def load_file(
    path: str | Path, source: str | None = None, functions: Mapping[str, Mapping[str, str]] | None = None
) -> Plugin:
    """`load_plugin`, which also registers `functions` of the file that another module had registered."""
    file, full = str(path), Path(path).resolve()
    if source is None:
        source = _source(file)
    held = PLUGINS.get(str(full))
    if held is not None and held.source == source:
        return held
    if held is not None:
        forget(held)
    before, loaded = known_names(), set(PLUGINS)
    try:
        with registering(str(full), imports=True):
            module = module_of(full, source)
        with registering(str(full)):
            for piece in pieces_in(module):
                register(piece)
            register_functions(module, functions or {})
    except HeadwayError as error:
        remove_new(before)
        raise type(error)(f"plugin={file}: {error}") from None
    except (Exception, SystemExit) as error:
        remove_new(before)
        line = line_of(error, full)
        where = f" at line {line}" if line else ""
        said = f"{type(error).__name__}: {' '.join(str(getattr(error, 'msg', error)).split())}"
        raise PluginError(f"plugin={file}: it cannot be run ({said}{where}); correct the file") from None
    plugin = Plugin(file, source, brings={part: held_by(str(full), part) for part in PARTS}, functions=functions or {})
    if held is None and not any(plugin.brings.values()) and loaded == set(PLUGINS):
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
    claim("pieces", piece.name, piece)
    return piece


def register_functions(module: ModuleType, functions: Mapping[str, Mapping[str, str]]) -> None:
    """Register functions of a module, given as part -> name -> its name in the module."""
    for part, names in functions.items():
        for name, place in names.items():
            _REGISTER[part](name, attribute_of(module.__name__, place))


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


# ---- modules and packages


def load_entry_points() -> None:
    """Register what installed packages bring; a package that fails is told about and left out."""
    for point in entry_points(group=GROUP):
        before = known_names()
        try:
            with registering(""):
                _load_entry_point(point)
        except (Exception, SystemExit) as error:
            remove_new(before)
            package = point.dist.name if point.dist else point.value
            said = " ".join(str(error).split())
            FAULTS.append(f"the pieces of the package {package} are left out ({type(error).__name__}: {said})")


def _load_entry_point(point: EntryPoint) -> None:
    loaded = set(PLUGINS)
    thing = point.load()
    module = thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]
    for piece in pieces_in(thing) if isinstance(thing, ModuleType) else [thing]:
        register(piece)
    package = f"{point.dist.name} {point.dist.version}" if point.dist else module.__name__
    for key in {*PLUGINS} - loaded | {module.__name__} & {*PLUGINS}:
        PLUGINS[key] = replace(PLUGINS[key], package=package)


def _record_module(made: Registration) -> None:
    """Remember the importable module that brings a name, as a plugin."""
    if made.kind != "module":
        return
    file = str(sys.modules[made.owner].__file__)
    held = PLUGINS.get(made.owner) or Plugin(file, "", made.owner, brings=dict.fromkeys(PARTS, ()))
    names = tuple(dict.fromkeys((*held.brings[made.part], made.name)))
    functions = {part: dict(found) for part, found in held.functions.items()}
    if made.attribute:
        functions.setdefault(made.part, {})[made.name] = made.attribute
    source = Path(file).read_text(encoding="utf-8")  # each time: the module may have been loaded again
    brings = {**held.brings, made.part: names}
    PLUGINS[made.owner] = replace(held, source=source, brings=brings, functions=functions)


# ---- what is known


def remove_new(before: Mapping[str, set[str]]) -> None:
    """Remove what was registered since `known_names()` gave `before`."""
    now = known_names()
    _remove({part: now[part] - before[part] for part in PARTS})
    for key, held in list(PLUGINS.items()):
        kept = {part: tuple(n for n in names if n in before[part]) for part, names in held.brings.items()}
        if held.module and not any(kept.values()):
            del PLUGINS[key]


def _remove(brings: Mapping[str, Iterable[str]]) -> None:
    for part, names in brings.items():
        for name in names:
            _UNREGISTER[part](name)
            registered.release(part, name)


def _source(file: str) -> str:
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        missing = "it is no Python file" if path.exists() else f"there is no such file; paths start at {Path.cwd()}"
        raise PluginError(f"plugin={file}: {missing}; give the path of a Python file, such as my_method.py")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"plugin={file}: it cannot be read ({error}); give a Python file in UTF-8") from None


_REGISTER: dict[str, Callable[..., Any]] = {
    "models": register_model,
    "data": datasets.register_dataset,
    "partitions": partitions.register_partition,
}
_UNREGISTER: dict[str, Callable[[str], Any]] = {
    "pieces": REGISTRY.unregister,
    "models": unregister_model,
    "data": datasets.unregister_dataset,
    "partitions": partitions.unregister_partition,
}
registered.listen(_record_module)
