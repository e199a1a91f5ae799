"""Route SIGINT and SIGTERM to a handler, then restore."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def signals_to(handler: Handler) -> Iterator[None]:
    """Route SIGINT (Ctrl-C) and SIGTERM to the handler; restore the earlier handlers at the end of the block."""
    try:
        old = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread, which alone may set handlers
        old = {}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
