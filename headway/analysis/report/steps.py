"""What making a page tells while it works."""

from __future__ import annotations


class Steps:
    """Steps of a known number, one after the other; the base class is silent."""

    def begin(self, what: str, total: int) -> None:
        """A piece of work of so many steps begins."""

    def at(self, done: int, name: str) -> None:
        """So many steps are done, and this one is next."""

    def say(self, text: str) -> None:
        """What goes on inside a step."""

    def note(self, text: str) -> None:
        """What a reader should not miss."""


SILENT = Steps()
