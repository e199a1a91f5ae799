"""`headway calibrate`: a finished run, calibrated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.base.lazy import LazyModule
from headway.cli.help import declare
from headway.cli.options import posthoc_options, run_folder_argument
from headway.cli.output import emit, percent, plain_table
from headway.cli.values import piece_in, run_folder, workers_in

if TYPE_CHECKING:
    from headway.cli import progress
    from headway.runs import posthoc
else:  # torch comes with them
    progress, posthoc = LazyModule("headway.cli.progress"), LazyModule("headway.runs.posthoc")


@declare("calibrate", run_folder_argument(), *posthoc_options("ccvr, ccvr(per_class=500), oracle, ffc"))
def command(path: str, piece: str, workers: str | None, as_json: bool, quiet: bool) -> None:
    """Calibrate the classifier of a finished run.

    Prints the accuracy before and after, and what the same retraining reaches on real features: the oracle.
    """
    piece, processes = piece_in(piece, "a calibration", "ccvr"), workers_in(workers)
    say = progress.say_on_stderr(path, quiet or as_json)
    result = posthoc.calibrate(run_folder(path), piece, say=say, workers=processes)
    emit(as_json, result, lambda c: print_result(c, result))


def print_result(console: Console, result: dict[str, Any]) -> None:
    table = plain_table("global accuracy, %", "value")
    for name, key in (
        ("before", "before"),
        ("after", "after"),
        ("oracle: the same retraining on real features", "oracle"),
    ):
        table.add_row(name, percent(result[key]))
    table.add_row(
        "balanced, before / after", f"{percent(result['balanced_before'])} / {percent(result['balanced_after'])}"
    )
    console.print(result["recipe"], markup=False)
    console.print(table)
    console.print(f"model: {result['model']}", markup=False)
    if "note" in result:
        console.print(f"note: {result['note']}", markup=False)
