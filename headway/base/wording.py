"""How a message gives advice: `overwrite=True` to a caller in Python, `--overwrite` on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.base.errors import to_copy

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


def on_command_line() -> bool:
    """Whether messages are read by a user of the command line, not by a caller in Python."""
    return _commands


def speak_as(commands: bool) -> None:
    """From now on: a worker on another machine words its messages as the process that started it."""
    global _commands
    _commands = commands


def either(*, python: str, command: str) -> str:
    """The advice that the reader can follow."""
    return command if _commands else python


def plugin_given(file: str) -> str:
    """How the user names a plugin file.

    >>> plugin_given("halved.py")
    "headway.load_plugin('halved.py')"
    >>> with for_commands():
    ...     plugin_given("halved.py")
    '--plugin halved.py'
    """
    return either(python=f"headway.load_plugin({file!r})", command=f"--plugin {file}")


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


def resume_call(path: Path | None = None) -> str:
    """What continues a run: a command, or a call in Python. Without a path the reader puts in the run.

    >>> resume_call(Path("runs/a")), resume_call()
    ("headway.resume('runs/a')", 'headway.resume(run)')
    >>> with for_commands():
    ...     resume_call(Path("runs/a")), resume_call()
    ('`headway resume runs/a`', '`headway resume RUN`')
    """
    python = "headway.resume(run)" if path is None else f"headway.resume({str(path)!r})"
    return either(python=python, command=to_copy("resume", "RUN" if path is None else path))
