"""Help pages, and what a mistyped command is told: one sentence, with a guess where a sensible one exists."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence

import click
from typer.core import TyperCommand

from headway.settings import Settings

ARGUMENTS = {  # kept here, as typer 0.20 loses the help of arguments beside click 8.5
    "recipe": "pieces joined with +, such as scaffold+fn or moon(mu=5)+ccvr",
    "recipes": "one recipe or more, such as fedavg scaffold+fn",
    "path": "the run directory",
    "table": "PAPER/TABLE or PAPER/FIGURE, such as fedetf/table4; without it, all there are",
    "paths": "one run directory or more",
    "folders": "folders that hold runs, or runs [runs]",
    "what": "pieces, recipes, models, data or partitions [pieces]",
}
MEANT = {  # what other tools call our options
    "learning-rate": "lr",
    "wd": "weight-decay",
    "bs": "batch-size",
    "dataset": "data",
    "output": "out",
    "num-workers": "workers",
}


class Command(TyperCommand):
    """A command whose help page has what its arguments are, and brackets without the backslash meant for rich."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [(param, param.get_help_record(ctx)) for param in self.get_params(ctx)]
        arguments = [(p.make_metavar(ctx), ARGUMENTS[str(p.name)]) for p, _ in shown if isinstance(p, click.Argument)]
        options = [(r[0], r[1].replace("\\[", "[")) for p, r in shown if r and not isinstance(p, click.Argument)]
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def usage_sentence(error: click.exceptions.UsageError, words: Sequence[str]) -> str:
    """click's complaint in the form of ours: what was found; what to do."""
    ctx, message = error.ctx, error.format_message()
    if isinstance(error, click.exceptions.NoSuchOption) and ctx:
        return no_option(ctx, error.option_name, words)
    if ctx and (extra := re.match(r"Got unexpected extra arguments? \((.*)\)", message, re.DOTALL)):
        return too_many(ctx, extra[1])
    found, guessed, close = message.partition(" Did you mean ")
    command = ctx.command_path if ctx else " ".join(["headway", *(w for w in words[:1] if not w.startswith("-"))])
    fix = f"did you mean {close.split('?')[0]}?" if guessed else f"see `{command} --help`"
    return f"{found.rstrip('.')}; {fix}"


def no_option(ctx: click.Context, name: str, words: Sequence[str]) -> str:
    """An option this command lacks: a near one of its own, or the commands that have it."""
    if not name.startswith("--"):  # of -lr click names -l alone
        name = next((w.split("=")[0] for w in words if w.startswith(name)), name)
    group = ctx.find_root().command
    others = group.commands.items() if isinstance(group, click.Group) else []
    homes = [f"`headway {other}`" for other, command in others if name in options_of(command)]
    if homes and len(homes) <= 7:
        where = " and ".join(filter(None, (", ".join(homes[:-1]), homes[-1])))
        return f"No such option '{name}': it belongs to {where}; see `{ctx.command_path} --help`"
    close = guess(name, options_of(ctx.command))
    return f"No such option '{name}'; " + (f"did you mean '{close}'?" if close else f"see `{ctx.command_path} --help`")


def options_of(command: click.Command) -> list[str]:
    """The long names that its help page shows."""
    params = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [name for p in params for name in (*p.opts, *p.secondary_opts) if name.startswith("--")]


def guess(name: str, known: Sequence[str]) -> str | None:
    """The option that was meant: under another tool's name, with a word too many or too few, or mistyped."""
    plain, names = name.lstrip("-").replace("_", "-"), [option.lstrip("-") for option in known]
    words = set(plain.split("-"))
    kin = [n for n in names if set(n.split("-")) <= words or words <= set(n.split("-"))]
    found = MEANT.get(plain) or next(iter(kin or difflib.get_close_matches(plain, names, n=1, cutoff=0.7)), None)
    return f"--{found}" if found in names else None


def too_many(ctx: click.Context, extra: str) -> str:
    """Words after the last argument: mostly pieces, recipes or settings that the user meant to add."""
    command, recipe = ctx.command_path, ctx.params.get("recipe")
    if recipe is None:
        return f"argument '{extra}' is one too many; see `{command} --help`"
    key, equals, value = extra.partition("=")
    if equals and key.replace("-", "_") in Settings.model_fields:
        fix = f"write it as an option, --{key.replace('_', '-')} {value}"
    elif equals and key.isidentifier():
        fix = f"settings of a piece stand in parentheses, as in {shlex.quote(f'{recipe}({extra})')}"
    else:
        parts = [part.strip("+") for part in (recipe, *extra.split()) if part.strip("+")]
        fix = f"write {shlex.quote('+'.join(parts))} to join pieces"
        fix += f", or `headway compare {shlex.join(parts)}` to compare" if ctx.info_name == "run" else ""
    return f"argument '{extra}': `{command}` takes one recipe; {fix}"
