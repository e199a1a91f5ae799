"""`headway`: the commands by name, and `main`, which runs one. A command's file is imported when it is asked for."""

from __future__ import annotations

import atexit
import importlib
import io
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

import headway
from headway.base.errors import HeadwayError
from headway.base.lazy import LazyModule
from headway.base.wording import for_commands
from headway.cli.completion import completion_options
from headway.cli.failure import fail
from headway.cli.help import HELP_NAMES, help_option, usage_sentence

if TYPE_CHECKING:
    from headway.methods import plugins
else:  # not needed for help
    plugins = LazyModule("headway.methods.plugins")

ABOUT = "Federated learning when every client sees a different mix of labels."
COMMANDS = {  # name -> what it does, in one line; the command stands in headway/cli/NAME.py
    "run": "One federated training run -> a run directory.",
    "compare": "Several recipes and seeds on one task -> a leaderboard.",
    "resume": "Continue a stopped run, to the same bytes as without a stop.",
    "calibrate": "Calibrate the classifier of a finished run.",
    "personalise": "Make personal models of a finished run.",
    "diagnose": "Analyse finished runs: the papers' numbers and figures.",
    "list": "What there is: pieces, recipes, models, data, partitions.",
    "explain": "Which piece acts at which step, and what is sent.",
    "cite": "BibTeX of the papers behind a recipe.",
    "check": "Try a method of your own on the laws that every method keeps.",
    "partition": "Draw, save, describe and plot a partition; no training.",
    "bench": "Time federated rounds here, against a plain loop.",
    "report": "One page about a run, or a comparison of many.",
    "runs": "List runs, filter and sort them, show how they differ.",
    "export": "A run's model as a file for other tools, checked.",
    "reproduce": "A paper's table or figure again, beside its numbers.",
}


class Commands(click.Group):
    """The group of all commands; its help page needs none of their files."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"headway.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command '{args[0]}'.", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None  # click would print an empty line first

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return help_option()

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=about) for name, about in COMMANDS.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)


def print_version(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
    if asked:
        print(f"headway {headway.__version__}")
        ctx.exit()


app = Commands(
    name="headway",
    help=ABOUT,
    invoke_without_command=True,
    context_settings={"help_option_names": HELP_NAMES},
    params=[
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=print_version,
            help="print the version",
        ),
        *completion_options(),
    ],
)  # fmt: skip


def main() -> NoReturn:
    """Run a command; every mistake a user can make ends in one sentence and a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± gets a question mark
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, terminated)  # an exception, so that temporary folders go as after Ctrl-C
    try:
        words = sys.argv[1:] or ["--help"]
        with for_commands():
            code = app.main(words, prog_name="headway", standalone_mode=False) or 0
    except HeadwayError as error:
        code = fail(str(error), error.exit_code)
    except click.exceptions.UsageError as error:
        code = fail(usage_sentence(error, sys.argv[1:]), 2)
    except Terminated:
        code = fail("terminated", 143)
    except (Interrupted, KeyboardInterrupt, click.exceptions.Abort):
        code = fail("interrupted", 130)
    except Exception as error:
        stopped = getattr(error, "exit_code", None)  # a run that was asked to stop says how to continue it
        if stopped is None and not (place := plugins.place_in_plugin(error)):
            raise
        said = " ".join(f"{type(error).__name__}: {error}".split())
        code = fail(f"plugin={place}: {said}; correct the file", 2) if stopped is None else fail(str(error), stopped)
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # all is done: Ctrl-C now would make it a failure
    sys.exit(code)


class Interrupted(BaseException):
    """Ctrl-C came while no run was there to handle it."""


class Terminated(BaseException):
    """SIGTERM came while no run was there to handle it."""


def terminated(number: int, frame: object) -> NoReturn:
    raise Terminated


if __name__ == "__main__":
    main()
