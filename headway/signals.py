"""Who hears Ctrl-C and SIGTERM for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def signals_to(handler: Handler) -> Iterator[None]:
    """Both signals go to this handler, then to whoever had them before."""
    try:
        old = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it handles signals
        old = {}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)
