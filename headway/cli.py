"""The command line: run, compare, resume, list, explain, cite, partition."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click
import typer
from rich.console import Console

from headway.cli_options import how, shared_options, task_values
from headway.errors import HeadwayError

app = typer.Typer(
    name="headway",
    help="Federated learning when every client sees a different mix of labels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def out_console() -> Console:
    return Console(highlight=False, soft_wrap=True)


@app.command("run")
@shared_options
def run_command(
    recipe: str = typer.Argument(..., help="pieces joined with +, such as scaffold+fn or moon(mu=5)+ccvr"),
    **given: Any,
) -> None:
    """One federated training run -> a run directory."""
    from headway import api, show
    from headway.comparison import Comparison, row_of
    from headway.experiment import execute
    from headway.settings import settings

    ways = how(given)
    s = settings(task_values(given))
    if ways.seeds is None:
        out = Path(given["out"]) if given["out"] else api.default_out(recipe, s)
        run = execute(recipe, s, out, ways.options)
        emit(ways.json, run.summary | {"run": str(run.path)}, lambda c: show.summary(c, run))
        return
    out = Path(given["out"]) if given["out"] else api.default_out(recipe, s.model_copy(update={"seed": ways.seeds[0]}))
    runs = [
        execute(recipe, s.model_copy(update={"seed": seed}), out / f"seed-{seed}", ways.options) for seed in ways.seeds
    ]
    whole = Comparison(out, (row_of(recipe, runs),), tuple(ways.seeds))
    whole.save()
    emit(ways.json, whole.records(), lambda c: show.leaderboard(c, whole))


@app.command("compare")
@shared_options
def compare_command(
    recipes: list[str] = typer.Argument(..., help="two or more recipes"),  # noqa: B008  typer's way
    **given: Any,
) -> None:
    """The same task for several recipes and seeds -> leaderboard, run directories."""
    from headway import api, show
    from headway.comparison import compare
    from headway.settings import settings

    ways = how(given)
    s = settings(task_values(given))
    seeds = ways.seeds or [s.seed]
    name = f"compare-{api.digest([recipes, s.model_dump(), seeds])}"
    result = compare(recipes, s, seeds, Path(given["out"]) if given["out"] else api.RUNS / name, ways.options)
    emit(ways.json, result.records(), lambda c: show.leaderboard(c, result))


@app.command("resume")
def resume_command(
    path: Path = typer.Argument(..., metavar="RUN", help="the run directory"),  # noqa: B008
    as_json: bool = typer.Option(False, "--json", help="print the summary as JSON"),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="no progress"),
) -> None:
    """Continue a stopped run; the end is byte-identical to an unstopped one."""
    from headway import show
    from headway.experiment import Options, resume
    from headway.progress import progress_for

    options = Options(progress=progress_for(Console(stderr=True), quiet or as_json))
    run = resume(path, options)
    emit(as_json, run.summary | {"run": str(run.path)}, lambda c: show.summary(c, run))


@app.command("list")
def list_command(
    what: str = typer.Argument("pieces", help="pieces, recipes, models, data or partitions"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """What there is: pieces, recipes, models, data, partitions."""
    from headway import show

    rows = show.listing(what)
    emit(as_json, rows, lambda c: show.listing_table(c, what, rows))


@app.command("explain")
def explain_command(
    recipe: str = typer.Argument(..., help="the recipe"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """Who acts where in the round, and what travels."""
    from headway import show
    from headway.methods import recipe as parse

    parsed = parse(recipe)
    emit(as_json, show.explanation(parsed), lambda c: show.explain_text(c, parsed))


@app.command("cite")
def cite_command(recipe: str = typer.Argument(..., help="the recipe")) -> None:
    """BibTeX of the papers behind a recipe."""
    from headway.methods import recipe as parse
    from headway.methods.references import bibtex

    print(bibtex(parse(recipe)))


@app.command("partition")
@shared_options
def partition_command(**given: Any) -> None:
    """Draw, save, describe and plot a partition; no training."""
    from headway import show
    from headway.rundir import prepare_folder
    from headway.settings import settings

    ways = how(given)
    out = Path(given["out"]) if given["out"] else None
    drawn = show.drawn_partition(settings(task_values(given)))
    if out:
        prepare_folder(out)
        drawn.save(out)
    emit(ways.json, drawn.record(), lambda c: drawn.print(c, out))


def emit(as_json: bool, value: Any, text: Callable[[Console], None]) -> None:
    """JSON on stdout for scripts, tables for people."""
    if as_json:
        print(json.dumps(value))
    else:
        text(out_console())


def main() -> NoReturn:
    """Run a command; whatever the user can cause ends in one sentence and a documented exit code."""
    try:
        app(standalone_mode=False)
        code = 0
    except click.exceptions.Exit as leave:
        code = leave.exit_code
    except HeadwayError as error:
        code = fail(str(error), error.exit_code)
    except click.exceptions.UsageError as error:
        code = fail(usage_sentence(error), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        from headway.experiment import Stopped

        if not isinstance(error, Stopped):
            raise
        code = fail(str(error), error.exit_code)
    sys.exit(code)


def fail(sentence: str, code: int) -> int:
    print(f"headway: {sentence}", file=sys.stderr)
    return code


def usage_sentence(error: click.exceptions.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "headway"
    text = error.format_message().rstrip(".").replace("\n", " ")
    return f"{text}; see `{command} --help`"


if __name__ == "__main__":
    main()
