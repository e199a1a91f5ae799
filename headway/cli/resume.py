"""`headway resume`: a stopped run, continued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.base.lazy import LazyModule
from headway.cli import completion
from headway.cli.help import declare
from headway.cli.options import json_output, plugin, quiet, run_folder_argument, text
from headway.cli.output import emit
from headway.cli.values import check_not_empty, run_folder, workers_in

if TYPE_CHECKING:
    from headway.cli import progress, results
    from headway.runs import options, runner
else:  # torch comes with them
    progress, results = LazyModule("headway.cli.progress"), LazyModule("headway.cli.results")
    options, runner = LazyModule("headway.runs.options"), LazyModule("headway.runs.runner")

OPTIONS = [
    text(
        "--engine", metavar="local|ray", about="another engine than it was started with",
        shell_complete=completion.words("local", "ray"),
    ),
    text("--address", about="a running Ray cluster, HOST:PORT or auto"),
    text("--workers", about="processes that train clients side by side: auto or a number [auto]"),
    json_output(),
    quiet(),
]  # fmt: skip


@declare("resume", run_folder_argument(), *OPTIONS, plugin())
def command(
    path: str, engine: str | None, address: str | None, workers: str | None, as_json: bool, quiet: bool
) -> None:
    """Continue a stopped run, to the same bytes as without a stop."""
    for name, given in (("engine", engine), ("address", address)):
        check_not_empty(name, given)
    how = options.Options(workers=workers_in(workers), progress=progress.progress_on_stderr(quiet or as_json))
    run = runner.resume(run_folder(path), how, engine=engine, address=address)
    emit(as_json, run.summary | {"run": str(run.path)}, lambda c: results.summary(c, run))
