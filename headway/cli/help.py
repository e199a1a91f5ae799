"""How a command is declared, its help page, and the one sentence that answers a mistyped command."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import click

HELP_NAMES = ["-h", "--help"]
OTHER = "Options"  # the heading of options that belong to no group
MEANT = {  # what other tools call our options
    "learning-rate": "lr",
    "wd": "weight-decay",
    "bs": "batch-size",
    "dataset": "data",
    "output": "out",
    "num-workers": "workers",
}


class Argument(click.Argument):
    """An argument with its line on the help page."""

    def __init__(self, *names: str, about: str, **more: Any) -> None:
        super().__init__(list(names), **more)
        self.about = about


class Option(click.Option):
    """An option that stands under a heading of the help page."""

    def __init__(self, *names: str, about: str, group: str = OTHER, **more: Any) -> None:
        super().__init__(list(names), help=about, **more)
        self.group = group


def help_option() -> click.Option:
    def show(ctx: click.Context, param: click.Parameter, asked: bool) -> None:
        if asked:
            click.echo(ctx.get_help())
            ctx.exit()

    return Option(*HELP_NAMES, about="show this page", is_flag=True, is_eager=True, expose_value=False, callback=show)


class Command(click.Command):
    """A command whose help page explains its arguments and shows its options in groups."""

    def get_help_option(self, ctx: click.Context) -> click.Option:
        return help_option()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            if isinstance(param, Argument):
                sections["Arguments"].append((param.make_metavar(ctx), param.about))
            elif record := param.get_help_record(ctx):
                sections.setdefault(getattr(param, "group", OTHER), []).append(record)
        if OTHER in sections:
            sections[OTHER] = sections.pop(OTHER)  # it stands last
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def declare(name: str, *params: click.Parameter) -> Callable[[Callable[..., int | None]], Command]:
    """Make a command of a function; its docstring is the text of the help page."""

    def made(function: Callable[..., int | None]) -> Command:
        context = {"help_option_names": HELP_NAMES}
        return Command(name, callback=function, params=list(params), help=function.__doc__, context_settings=context)

    return made


# ---- mistyped commands
def usage_sentence(error: click.exceptions.UsageError, words: Sequence[str]) -> str:
    """click's complaint in the form of ours: what was found; what to do."""
    ctx, message = error.ctx, error.format_message()
    if isinstance(error, click.exceptions.NoSuchOption) and ctx:
        return no_option(ctx, error.option_name, words)
    if ctx and (found := re.match(r"No such command '(.*)'\.", message, re.DOTALL)):
        return no_command(ctx, found[1])
    if ctx and (extra := re.match(r"Got unexpected extra arguments? \((.*)\)", message, re.DOTALL)):
        return too_many(ctx, extra[1])
    command = ctx.command_path if ctx else " ".join(["headway", *(w for w in words[:1] if not w.startswith("-"))])
    return f"{message.rstrip('.')}; see `{command} --help`"


def no_command(ctx: click.Context, name: str) -> str:
    names = ctx.command.list_commands(ctx) if isinstance(ctx.command, click.Group) else []
    close = ", ".join(f"'{near}'" for near in difflib.get_close_matches(name, names))
    return f"No such command '{name}'; " + (f"did you mean {close}?" if close else "see `headway --help`")


def no_option(ctx: click.Context, name: str, words: Sequence[str]) -> str:
    """An option this command lacks: a near one of its own, or the commands that have it."""
    if not name.startswith("--"):  # of -lr click names -l alone
        name = next((w.split("=")[0] for w in words if w.startswith(name)), name)
    homes = [f"`headway {other}`" for other, command in other_commands(ctx) if name in options_of(command)]
    if homes and len(homes) <= 7:
        where = " and ".join(filter(None, (", ".join(homes[:-1]), homes[-1])))
        return f"No such option '{name}': it belongs to {where}; see `{ctx.command_path} --help`"
    close = guess(name, options_of(ctx.command))
    return f"No such option '{name}'; " + (f"did you mean '{close}'?" if close else f"see `{ctx.command_path} --help`")


def other_commands(ctx: click.Context) -> list[tuple[str, click.Command]]:
    """Every command of headway by name."""
    root = ctx.find_root()
    if not isinstance(root.command, click.Group):
        return []
    named = [(name, root.command.get_command(root, name)) for name in root.command.list_commands(root)]
    return [(name, command) for name, command in named if command is not None]


def options_of(command: click.Command) -> list[str]:
    """The long names that its help page shows."""
    params = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [name for p in params for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]


def guess(name: str, known: Sequence[str]) -> str | None:
    """The option that was meant: under another tool's name, with a word too many or too few, or mistyped."""
    plain, names = name.lstrip("-").replace("_", "-"), [option.lstrip("-") for option in known]
    words = set(plain.split("-"))
    similar = [n for n in names if set(n.split("-")) <= words or words <= set(n.split("-"))]
    found = MEANT.get(plain) or next(iter(similar or difflib.get_close_matches(plain, names, n=1, cutoff=0.7)), None)
    return f"--{found}" if found in names else None


def too_many(ctx: click.Context, extra: str) -> str:
    """Words after the last argument: mostly pieces, recipes or settings that the user meant to add."""
    command, recipe = ctx.command_path, ctx.params.get("recipe")
    if recipe is None:
        return f"argument '{extra}' is one too many; see `{command} --help`"
    key, equals, value = extra.partition("=")
    dashed = f"--{key.replace('_', '-')}"
    if equals and dashed in options_of(ctx.command):
        fix = f"write it as an option, {dashed} {value}"
    elif equals and key.isidentifier():
        fix = f"settings of a piece stand in parentheses, as in {shlex.quote(f'{recipe}({extra})')}"
    else:
        parts = [part.strip("+") for part in (recipe, *extra.split()) if part.strip("+")]
        fix = f"write {shlex.quote('+'.join(parts))} to join pieces"
        fix += f", or `headway compare {shlex.join(parts)}` to compare" if ctx.info_name == "run" else ""
    return f"argument '{extra}': `{command}` takes one recipe; {fix}"
