"""Names under which a user's own functions are registered: models, data sets, partitions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container
from typing import Any

from headway.base.errors import HeadwayError


def check_new_name(call: str, name: object, built_in: Container[str], error: type[HeadwayError]) -> str:
    """The name, if it can be used in a command and is not built in; otherwise raises `error`."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise error(f"{call}: the name {name!r} must be small letters, digits, - and _, and start with a letter")
    if name in built_in:
        raise error(f"{call}: the name '{name}' is built in; choose another name")
    return name


def about_of(function: Callable[..., Any], about: str) -> str:
    """The user's description of the function, else the first line of its docstring."""
    lines = (about or inspect.getdoc(function) or "").strip().splitlines()
    return lines[0] if lines else "registered by the user"
