"""`headway reproduce`: a paper's table or figure again, paper and ours side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from headway.cli_help import Command
from headway.cli_options import command_words, how, task_values, way_options
from headway.errors import ConfigError

Emit = Callable[[bool, Any, Callable[[Console], None]], None]


def add_to(app: typer.Typer, emit: Emit) -> None:
    @app.command("reproduce", cls=Command)
    @way_options
    def reproduce_command(
        table: str = typer.Argument(None),
        rows: str = typer.Option(None, help="some rows, such as 'cifar10,dir(0.05),fedavg,fedetf' or 'epochs=2'"),
        scale: str = typer.Option("cpu", metavar="cpu|full", help="cpu: minutes a row on 2 cores; full: as published"),
        **given: Any,
    ) -> None:
        """A paper's table or figure again, beside its numbers."""
        from headway.reproduce import figures, plan
        from headway.reproduce.run import reproduce_table

        if table is None:
            listed = figures.listing()
            emit(given["json"], listed, lambda c: figures.show_listing(c, listed))
            return
        if scale not in plan.SCALES:
            raise ConfigError(f"scale={scale}: use cpu or full")
        ways = how(given)
        changes = task_values(given)
        folder = ways.out or Path("runs") / "reproduce" / table.strip().lower().partition("/")[0]
        from headway.cli import continued

        said = shlex.join(["headway", "reproduce", *command_words()])
        with continued(ways.options.overwrite):
            if (preset := figures.find(table)) is not None:
                from headway.reproduce.drawn import reproduce_figure

                made: Any = reproduce_figure(preset, rows, scale, changes, ways.seeds, folder, ways.options, said)
            else:
                made = reproduce_table(table, rows, scale, changes, ways.seeds, folder, ways.options, said)

        def show(console: Console) -> None:
            made.show(console)
            console.print(f"\nfiles and runs in {folder}", markup=False, soft_wrap=True)

        emit(ways.json, made.record(), show)
