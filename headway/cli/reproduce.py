"""`headway reproduce`: a paper's table or figure again, beside its numbers."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.base.errors import ConfigError
from headway.base.lazy import LazyModule
from headway.cli import completion
from headway.cli.help import Argument, declare
from headway.cli.options import options_without_settings, text
from headway.cli.output import emit
from headway.cli.values import command_words, given_options, hint_to_continue, task_values

if TYPE_CHECKING:
    from headway.analysis.reproduce import figures, plan, run_figure, run_table
else:  # torch and matplotlib come with them
    figures, plan = LazyModule("headway.analysis.reproduce.figures"), LazyModule("headway.analysis.reproduce.plan")
    run_figure = LazyModule("headway.analysis.reproduce.run_figure")
    run_table = LazyModule("headway.analysis.reproduce.run_table")

TABLE = Argument(
    "table", required=False, about="PAPER/TABLE or PAPER/FIGURE, such as fedetf/table4; without it, all there are"
)
OPTIONS = [
    text("--rows", about="some rows, such as 'cifar10,dir(0.05),fedavg,fedetf' or 'epochs=2'"),
    text(
        "--scale", default="cpu", metavar="cpu|full", shell_complete=completion.words("cpu", "full"),
        about="cpu: minutes a row on 2 cores; full: as published [cpu]",
    ),
]  # fmt: skip


@declare("reproduce", TABLE, *OPTIONS, *options_without_settings())
def command(table: str | None, rows: str | None, scale: str, **given: Any) -> None:
    """A paper's table or figure again, beside its numbers."""
    if table is None:
        listed = figures.listing()
        emit(given["as_json"], listed, lambda c: figures.show_listing(c, listed))
        return
    if scale not in plan.SCALES:
        raise ConfigError(f"scale={scale}: use cpu or full")
    how = given_options(given)
    changes = task_values(given)
    folder = how.out or Path("runs") / "reproduce" / table.strip().lower().partition("/")[0]
    said = shlex.join(["headway", "reproduce", *command_words()])
    preset = figures.find(table)
    with hint_to_continue(how.options.overwrite):
        if preset is not None:
            made: Any = run_figure.reproduce_figure(preset, rows, scale, changes, how.seeds, folder, how.options, said)
        else:
            made = run_table.reproduce_table(table, rows, scale, changes, how.seeds, folder, how.options, said)

    def show(console: Console) -> None:
        made.show(console)
        console.print(f"\nfiles and runs in {folder}", markup=False, soft_wrap=True)

    emit(how.json, made.record(), show)
