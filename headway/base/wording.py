"""How a message names an option: `overwrite=True` for a caller in Python, `--overwrite` on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_commands = False  # global and not a context variable, so that it also applies to threads that a command starts


@contextmanager
def for_commands() -> Iterator[None]:
    """Within this block messages are for the command line."""
    global _commands
    before, _commands = _commands, True
    try:
        yield
    finally:
        _commands = before


def option(name: str, value: Any = None) -> str:
    """An option as the user writes it.

    >>> option("out"), option("overwrite", True), option("engine", "ray"), option("workers", 1)
    ('out', 'overwrite=True', "engine='ray'", 'workers=1')
    >>> with for_commands():
    ...     option("out"), option("overwrite", True), option("engine", "ray"), option("workers", 1)
    ('--out', '--overwrite', '--engine ray', '--workers 1')
    """
    if not _commands:
        return name if value is None else f"{name}={value!r}"
    dashed = "--" + name.replace("_", "-")
    return dashed if value is None or value is True else f"{dashed} {value}"
