"""`headway personalise`: a finished run, personalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.base.lazy import LazyModule
from headway.base.text import counted
from headway.cli.help import declare
from headway.cli.options import posthoc_options, run_folder_argument
from headway.cli.output import emit, percent, plain_table
from headway.cli.values import piece_in, run_folder, workers_in

if TYPE_CHECKING:
    from headway.cli import progress
    from headway.runs import posthoc
else:  # torch comes with them
    progress, posthoc = LazyModule("headway.cli.progress"), LazyModule("headway.runs.posthoc")


@declare("personalise", run_folder_argument(), *posthoc_options("ft, ft(epochs=5, lr=0.1), algorithm2, one_step"))
def command(path: str, piece: str, workers: str | None, as_json: bool, quiet: bool) -> None:
    """Make personal models of a finished run.

    Prints their accuracy as received and after every stage, and saves them.
    """
    piece, processes = piece_in(piece, "a personalisation", "ft"), workers_in(workers)
    say = progress.say_on_stderr(path, quiet or as_json)
    result = posthoc.personalise(run_folder(path), piece, say=say, workers=processes)
    emit(as_json, result, lambda c: print_result(c, result))


def print_result(console: Console, result: dict[str, Any]) -> None:
    own = result["personal"]
    table = plain_table("personal accuracy, %", "mean over clients")
    for stage, mean in own["stages"].items():
        table.add_row(stage, percent(mean))
    table.add_row("at the end, mean ± std over clients", percent(own["mean"], own["std"]))
    table.add_row("at the end, pooled", percent(own["pooled"]))
    console.print(result["recipe"], markup=False)
    console.print(table)
    console.print(f"models of {counted(own['clients'], 'client')}: {result['models']}", markup=False)
    if "note" in own:
        console.print(f"note: {own['note']}", markup=False)
