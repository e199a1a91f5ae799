"""Import of a user's Python file as a module."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import linecache
import sys
from pathlib import Path
from types import ModuleType


def module_of(path: Path, source: str | None = None) -> ModuleType:
    """Run the file and return its module. `source` is its text, if the file is not on this machine.

    The module's name contains a hash of the whole path, so that two files called net.py are two modules.
    """
    full = path.resolve()
    name = f"headway_user_{full.stem}_{hashlib.blake2b(str(full).encode(), digest_size=6).hexdigest()}"
    text = full.read_text(encoding="utf-8") if source is None else source
    spec = importlib.machinery.ModuleSpec(name, None, origin=str(full))
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(full)
    before = sys.modules.get(name)
    sys.modules[name] = module  # before it runs, as dataclasses and pickle need it
    linecache.cache[str(full)] = (len(text), None, text.splitlines(keepends=True), str(full))  # for tracebacks, inspect
    try:
        exec(compile(text, str(full), "exec"), module.__dict__)  # noqa: S102
    except BaseException:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise
    return module


def line_of(error: BaseException, path: Path) -> int | None:
    """The line of the file at which the error occurred, or None if it is not known."""
    if isinstance(error, SyntaxError):
        return error.lineno
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path.resolve()):
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    return lines[-1] if lines else None
