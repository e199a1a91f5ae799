"""What every command prints with: JSON for scripts, tables for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from headway.base.errors import DiskError
from headway.base.strict_json import strict


class Out(Console):
    """Standard output; a reader that has seen enough (`headway list | head -1`) is no error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def emit(as_json: bool, value: Any, text: Callable[[Console], None]) -> None:
    """Print the value as JSON, or the text."""
    try:
        if as_json:
            print(json.dumps(strict(value), allow_nan=False))
        else:
            text(Out(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the interpreter's last flush fail
        raise DiskError(
            f"standard output cannot be written ({error.strerror}); free space or send it elsewhere"
        ) from None


def plain_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
    return table


def percent(value: float | None, std: float | None = None) -> str:
    if value is None:
        return "n/a"
    return f"{100 * value:.2f}" if std is None else f"{100 * value:.2f} ± {100 * std:.2f}"
