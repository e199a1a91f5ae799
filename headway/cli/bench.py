"""`headway bench`: how fast federated rounds run on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from headway.base.lazy import LazyModule
from headway.cli.help import declare
from headway.cli.options import json_output, quiet, text
from headway.cli.output import emit
from headway.cli.values import MOST_THREADS, number, out_in

if TYPE_CHECKING:
    from headway.bench import report
else:  # torch comes with it
    report = LazyModule("headway.bench.report")

OPTIONS = [
    text("--only", about="some of w1,w2,w3,methods,heads,ccvr,growth,start; all if not given"),
    text("--repeats", default="5", about="times that everything is measured; the figures are medians [5]"),
    text("--workers", default="auto", about="processes that train clients: auto (one a core) or a number [auto]"),
    text("--out", about="a file to which one line with all figures is added"),
    json_output("print JSON"),
    quiet(),
]


@declare("bench", *OPTIONS)
def command(only: str | None, repeats: str, workers: str, out: str | None, as_json: bool, quiet: bool) -> None:
    """Time federated rounds here, against a plain loop."""
    times = number("repeats", repeats, int, 1, 1000)
    processes = None if workers == "auto" else number("workers", workers, int, 1, MOST_THREADS)
    place = out_in(out)
    console = Console(stderr=True, quiet=quiet or as_json)
    result = report.bench(
        report.groups_of(only),
        times,
        processes,
        place,
        lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    emit(as_json, result, lambda c: report.show(c, result))
