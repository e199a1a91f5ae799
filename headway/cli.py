"""The command line. Commands with much to say of their own live in cli_*.py and are registered here."""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click
import typer
from rich.console import Console

import headway
from headway import cli_reproduce
from headway.cli_export import export_command
from headway.cli_help import Command, usage_sentence
from headway.cli_looking import diagnose_command
from headway.cli_options import (
    MOST_THREADS,
    PARTITION,
    engine_of,
    filled,
    how,
    number,
    out_of,
    partition_options,
    run_folder,
    seeds_of,
    shared_options,
    task_values,
    workers_of,
)
from headway.cli_report import register as register_report
from headway.cli_runs import runs_command
from headway.errors import ConfigError, DiskError, HeadwayError
from headway.strict_json import strict

app = typer.Typer(
    name="headway",
    help="Federated learning when every client sees a different mix of labels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Out(Console):
    """Standard output; a reader that has seen enough (`headway list | head -1`) is no error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@app.callback(invoke_without_command=True)
def top(version: bool = typer.Option(False, "--version", help="print the version")) -> None:
    """Federated learning when every client sees a different mix of labels."""
    if version:
        print(f"headway {headway.__version__}")
        raise typer.Exit


@app.command("run", cls=Command)
@shared_options
def run_command(
    recipe: str = typer.Argument(...),
    **given: Any,
) -> None:
    """One federated training run -> a run directory."""
    from headway import api, show
    from headway.comparison import compare
    from headway.experiment import execute
    from headway.settings import settings

    ways = how(given)
    s = settings(task_values(given))
    if ways.seeds is None:
        run = execute(recipe, s, ways.out or api.default_out(recipe, s), ways.options)
        emit(ways.json, run.summary | {"run": str(run.path)}, lambda c: show.summary(c, run))
        return
    out = ways.out or api.default_out(recipe, s, ways.seeds)
    with continued(ways.options.overwrite):
        whole = compare([recipe], s, ways.seeds, out, ways.options, place=lambda recipe, seed: Path(f"seed-{seed}"))
    emit(ways.json, whole.records(), lambda c: show.leaderboard(c, whole))


@app.command("compare", cls=Command)
@shared_options
def compare_command(
    recipes: list[str] = typer.Argument(...),  # noqa: B008  typer's way
    **given: Any,
) -> None:
    """Several recipes and seeds on one task -> a leaderboard."""
    from headway import api, show
    from headway.comparison import compare
    from headway.settings import settings

    ways = how(given)
    s = settings(task_values(given))
    seeds = ways.seeds or [s.seed]
    out = ways.out or api.default_comparison(recipes, s, seeds)
    with continued(ways.options.overwrite):
        result = compare(recipes, s, seeds, out, ways.options)
    emit(ways.json, result.records(), lambda c: show.leaderboard(c, result))


@app.command("resume", cls=Command)
def resume_command(
    path: str = typer.Argument(..., metavar="RUN"),
    engine: str = typer.Option(None, metavar="local|ray", help="another engine than it was started with"),
    address: str = typer.Option(None, help="a running Ray cluster, HOST:PORT or auto"),
    workers: str = typer.Option(None, help="processes that train clients side by side: auto or a number [auto]"),
    as_json: bool = typer.Option(False, "--json", help="print JSON on stdout, no progress"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """Continue a stopped run, to the same bytes as without a stop."""
    from headway import show
    from headway.experiment import Options, resume
    from headway.progress import progress_for

    for name, text in (("engine", engine), ("address", address), ("workers", workers)):
        filled(name, text)
    options = Options(workers=workers_of(workers), progress=progress_for(Console(stderr=True), quiet or as_json))
    run = resume(run_folder(path), options, elsewhere=engine_of(engine, address))
    emit(as_json, run.summary | {"run": str(run.path)}, lambda c: show.summary(c, run))


@app.command("calibrate", cls=Command)
def calibrate_command(
    path: str = typer.Argument(..., metavar="RUN"),
    piece: str = typer.Option(..., "--with", help="such as ccvr, ccvr(per_class=500), oracle, ffc"),
    workers: str = typer.Option(None, help="processes that work on clients side by side: auto or a number [auto]"),
    as_json: bool = typer.Option(False, "--json", help="print JSON on stdout, no progress"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """Calibrate the classifier of a finished run.

    Prints the accuracy before and after, and what the same retraining reaches on real features: the oracle.
    """
    from headway import show
    from headway.afterwards import calibrate

    piece = piece_for("a calibration", "ccvr", piece)
    filled("workers", workers)
    result = calibrate(run_folder(path), piece, say=says(path, quiet or as_json), workers=workers_of(workers))
    emit(as_json, result, lambda c: show.calibration(c, result))


@app.command("personalise", cls=Command)
def personalise_command(
    path: str = typer.Argument(..., metavar="RUN"),
    piece: str = typer.Option(..., "--with", help="such as ft, ft(epochs=5, lr=0.1), algorithm2, one_step"),
    workers: str = typer.Option(None, help="processes that work on clients side by side: auto or a number [auto]"),
    as_json: bool = typer.Option(False, "--json", help="print JSON on stdout, no progress"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """Make personal models of a finished run.

    Prints their accuracy as received and after every stage, and saves them.
    """
    from headway import show
    from headway.afterwards import personalise

    piece = piece_for("a personalisation", "ft", piece)
    filled("workers", workers)
    result = personalise(run_folder(path), piece, say=says(path, quiet or as_json), workers=workers_of(workers))
    emit(as_json, result, lambda c: show.personalisation(c, result))


app.command("diagnose", cls=Command)(diagnose_command)


@app.command("list", cls=Command)
def list_command(
    what: str = typer.Argument("pieces"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """What there is: pieces, recipes, models, data, partitions."""
    from headway import show

    rows = show.listing(what)
    emit(as_json, rows, lambda c: show.listing_table(c, what, rows))


@app.command("explain", cls=Command)
def explain_command(
    recipe: str = typer.Argument(...),
    privacy: bool = typer.Option(False, "--privacy", help="what leaves a client, and what it tells of its data"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """Who acts where in the round, and what travels."""
    from headway import show
    from headway.methods import recipe as parse
    from headway.travels import leaves

    parsed = parse(recipe)
    if privacy:
        emit(as_json, leaves(parsed), lambda c: show.privacy_text(c, parsed))
    else:
        emit(as_json, show.explanation(parsed), lambda c: show.explain_text(c, parsed))


@app.command("cite", cls=Command)
def cite_command(recipe: str = typer.Argument(...)) -> None:
    """BibTeX of the papers behind a recipe."""
    from headway.methods import recipe as parse
    from headway.methods.references import bibtex

    text = bibtex(parse(recipe))
    emit(False, text, lambda c: c.out(text, highlight=False))


@app.command("partition", cls=Command)
@partition_options
def partition_command(**given: Any) -> None:
    """Draw, save, describe and plot a partition; no training."""
    from headway import show
    from headway.rundir import prepare_folder
    from headway.settings import settings

    if (seeds := seeds_of(given["seeds"], given["seed"])) is not None:
        raise ConfigError(f"seeds={given['seeds']}: a partition is drawn from one seed; use --seed {seeds[0]}")
    out = out_of(given["out"])
    drawn = show.drawn_partition(settings(task_values(given, PARTITION)))
    if out:
        drawn.check_place(out, given["overwrite"])
        prepare_folder(out)
        drawn.save(out)
    emit(given["json"], drawn.record(), lambda c: drawn.print(c, out))


@contextmanager
def continued(overwrite: bool) -> Iterator[None]:
    """When one of several runs is stopped, say how all of them go on."""
    from headway.experiment import Stopped

    try:
        yield
    except Stopped as stop:
        again = "the same command without --overwrite" if overwrite else "the same command again"
        stop.args = (f"{stop}, and {again} all of them",)
        raise


def piece_for(kind: str, example: str, text: str) -> str:
    """What --with names."""
    if not text.strip():
        raise ConfigError(f"with={text!r}: it is empty; name {kind}, such as --with {example}")
    return text


def says(path: str, quiet: bool) -> Callable[[str], None]:
    """What a finished run's next step tells on stderr."""
    from headway.progress import progress_for

    progress = progress_for(Console(stderr=True), quiet)
    return lambda text: progress.say(f"{path}: {text}")


@app.command("bench", cls=Command)
def bench_command(
    only: str = typer.Option(None, "--only", help="some of w1,w2,w3,methods,heads,ccvr,growth,start; all if not given"),
    repeats: str = typer.Option("5", "--repeats", help="turns of every subject; figures are their medians"),
    workers: str = typer.Option(
        "auto", "--workers", help="processes that train clients: auto (one a core) or a number"
    ),
    out: str = typer.Option(None, "--out", help="a file to which one line with all figures is added"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """How fast federated rounds run here, against a plain loop."""
    asked = number("repeats", repeats, int, 1, 1000)
    processes = None if workers == "auto" else number("workers", workers, int, 1, MOST_THREADS)
    place = out_of(out)
    from headway.bench import report

    console = Console(stderr=True, quiet=quiet or as_json)
    result = report.bench(
        report.groups_of(only),
        asked,
        processes,
        place,
        lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True),
    )
    emit(as_json, result, lambda c: report.show(c, result))


register_report(app)
app.command("runs", cls=Command)(runs_command)
app.command("export", cls=Command)(export_command)


def emit(as_json: bool, value: Any, text: Callable[[Console], None]) -> None:
    """JSON on stdout for scripts, tables for people."""
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


cli_reproduce.add_to(app, emit)


def main() -> NoReturn:
    """Run a command; whatever the user can cause ends in one sentence and a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± gets a question mark
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, terminated)  # an exception, so that temporary folders go as after Ctrl-C
    try:
        words = sys.argv[1:] or ["--help"]
        code = app(words, prog_name="headway", standalone_mode=False) or 0  # an exit's code, Ctrl-C's too
        if code == 130:
            fail("interrupted", code)
    except HeadwayError as error:
        code = fail(str(error), error.exit_code)
    except click.exceptions.UsageError as error:
        code = fail(usage_sentence(error, sys.argv[1:]), 2)
    except Terminated:
        code = fail("terminated", 143)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = fail("interrupted", 130)
    except Exception as error:
        from headway.experiment import Stopped

        if not isinstance(error, Stopped):
            raise
        code = fail(str(error), error.exit_code)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # all is done: Ctrl-C now would make it a failure
    sys.exit(code)


class Terminated(BaseException):
    """SIGTERM came, and whoever is at work had not asked to hear of it."""


def terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


def fail(sentence: str, code: int) -> int:
    """One line on stderr, whatever stands in names and values that users gave."""
    line = "".join(c if c.isprintable() else " " for c in sentence)
    print(f"headway: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
