"""Names of a user's own pieces, models, data sets and partitions, and who registered each of them."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from headway.base.errors import HeadwayError, nearest

PARTS = ("pieces", "models", "data", "partitions")
FAULTS: list[str] = []  # one sentence for each installed package that cannot be used


@dataclass(frozen=True)
class Registration:
    """A name and its owner: what brings it, and can bring it again."""

    part: str
    name: str
    owner: str  # the whole path of a plugin file, or the name of a module
    kind: str  # "file", "module" (it can be imported), "process" (this process alone has it)
    attribute: str = ""  # of a module's function that another module registers: its name there


_held: dict[tuple[str, str], Registration] = {}
_running: list[tuple[str, bool]] = []  # who registers now, and whether modules that are imported meanwhile own theirs
_listeners: list[Callable[[Registration], None]] = []
_find_installed: list[Callable[[], None]] = []  # registers what installed packages bring; called at most once


# ---- who registers
@contextmanager
def registering(owner: str, imports: bool = False) -> Iterator[None]:
    """Within this block what is registered belongs to this file; with "" to the module that registers it.

    With `imports` the file's code runs: a module that it imports owns what it registers itself.
    """
    _running.append((owner, imports))
    try:
        yield
    finally:
        _running.pop()


def claim(part: str, name: str, thing: Any) -> Registration:
    """Note who registers a name now, and tell the listeners."""
    made = _owned(part, name, thing)
    _held[part, name] = made
    for tell in _listeners:
        tell(made)
    return made


def release(part: str, name: str) -> None:
    """Forget a name's owner."""
    _held.pop((part, name), None)


def held_by(owner: str, part: str) -> tuple[str, ...]:
    """The names that an owner holds."""
    return tuple(sorted(r.name for r in _held.values() if (r.owner, r.part) == (owner, part)))


def is_of_this_process(part: str, name: str) -> bool:
    """Whether a name was registered in this process, and no file or module brings it."""
    made = _held.get((part, name))
    return made is not None and made.kind == "process"


def listen(tell: Callable[[Registration], None]) -> None:
    """Call `tell` with every registration, those before this call included."""
    for made in _held.values():
        tell(made)
    _listeners.append(tell)


def check_new_name(
    part: str, call: str, name: object, built_in: Container[str], thing: Any, error: type[HeadwayError]
) -> None:
    """Raise `error` if the name cannot be used in a command, is built in, or belongs to another plugin or module."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise error(f"{call}: the name {name!r} must be small letters, digits, - and _, and start with a letter")
    if name in built_in:
        raise error(f"{call}: the name '{name}' is built in; choose another name")
    held = _held.get((part, name))
    if held is not None and held.owner != _owned(part, name, thing).owner:
        place = held.owner if held.kind == "file" else f"the module {held.owner}"
        raise error(f"{call}: the name '{name}' is registered by {place}; choose another name")


def _owned(part: str, name: str, thing: Any) -> Registration:
    caller, imported = _caller()
    file, imports = _running[-1] if _running else ("", False)
    if file and not (imports and imported and is_importable(caller)):
        return Registration(part, name, file, "file")
    if imported and is_importable(caller) and part != "pieces":
        return Registration(part, name, caller, "module")
    module, place = str(getattr(thing, "__module__", "")), str(getattr(thing, "__qualname__", ""))
    found = part == "pieces" or attribute_of(module, place) is thing  # a decorated class is not yet in its module
    if "<locals>" not in place and is_importable(module) and found:
        return Registration(part, name, module, "module", "" if part == "pieces" else place)
    return Registration(part, name, module if part == "pieces" else caller, "process")


def _caller() -> tuple[str, bool]:
    """The module that called headway, and whether it is being imported."""
    frame = sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] == __name__.partition(".")[0]:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name == "<module>"


def is_importable(module: str) -> bool:
    """Whether another process can import this module: it is no script that was started, notebook or plugin file."""
    if module == "__main__" or module.startswith("headway_user_"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and Path(str(file)).is_file()


def attribute_of(module: str, place: str) -> Any:
    """What a module has at this place, such as `small` or `Nets.small`; None if it has nothing there."""
    return reduce(lambda thing, name: getattr(thing, name, None), place.split("."), sys.modules.get(module))


# ---- installed packages
def find_installed_by(find: Callable[[], None]) -> None:
    """Set the function that registers what installed packages bring."""
    _find_installed[:] = [find]


def discover() -> None:
    """Ask the installed packages, once; only for an unknown name or a list, as it imports them."""
    if _find_installed:
        _find_installed.pop()()


def is_known(name: str, table: Container[str]) -> bool:
    """Whether a table has the name, if need be after installed packages were asked."""
    if name not in table:
        discover()
    return name in table


def nearest_known(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """What `nearest` says, and which packages are left out."""
    return "; ".join([nearest(name, known, otherwise), *FAULTS])


def about_of(function: Callable[..., Any], about: str) -> str:
    """The user's description of the function, else the first line of its docstring."""
    lines = (about or inspect.getdoc(function) or "").strip().splitlines()
    return lines[0] if lines else "registered by the user"
