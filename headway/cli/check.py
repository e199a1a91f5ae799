"""`headway check`: a method of one's own, tried on the laws that every method keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headway.base.errors import PluginError
from headway.base.lazy import LazyModule
from headway.base.text import counted
from headway.cli import completion
from headway.cli.help import Argument, declare
from headway.cli.options import json_output, plugin, quiet, text
from headway.cli.output import emit
from headway.methods import REGISTRY
from headway.methods import recipe as parse_recipe
from headway.methods.plugins import load_plugin

if TYPE_CHECKING:
    from headway.analysis import laws
    from headway.cli import progress
else:  # torch comes with them
    laws, progress = LazyModule("headway.analysis.laws"), LazyModule("headway.cli.progress")

FILE = Argument("file", about="the Python file with the method", shell_complete=completion.files)
RECIPE = text(
    "--recipe", about="try this recipe instead of each piece of the file at its defaults",
    shell_complete=completion.recipes,
)  # fmt: skip


@declare("check", FILE, RECIPE, plugin(), json_output(), quiet())
def command(file: str, recipe: str | None, as_json: bool, quiet: bool) -> int:
    """Try a method of your own on the laws that every method keeps.

    Exit code 0: all laws that could be tried hold. Exit code 2: a law is broken, or the request is wrong.
    """
    own = load_plugin(file)
    pieces = [REGISTRY.by_name[name] for name in own.brings["pieces"]]
    if not pieces and recipe is None:
        raise PluginError(f"plugin={file}: it defines no piece; derive a class from headway.Piece, or give --recipe")
    tried = [parse_recipe(recipe)] if recipe is not None else laws.recipes_of(pieces)
    if pieces and recipe is not None and not {p.name for p in pieces} & {p.name for p in tried[0].pieces}:
        names = " or ".join(p.name for p in pieces)
        raise PluginError(f"recipe={recipe}: it has no piece of {file}; add {names}, such as {recipe}+{pieces[0].name}")
    say = progress.say_on_stderr(file, quiet or as_json)
    found = []
    for one in tried:
        for verdict in laws.verdicts(one):
            say(f"{verdict.law}: {answer(verdict)}")
            found.append(verdict)
    emit(as_json, [record(v) for v in found], lambda c: print_verdicts(c, found))
    return 2 if any(v.broken for v in found) else 0


def record(verdict: laws.Verdict) -> dict[str, Any]:
    return {
        "recipe": verdict.recipe, "law": verdict.law, "about": laws.about(verdict.law),
        "holds": None if verdict.untried else not verdict.broken, "why": verdict.broken or verdict.untried or None,
    }  # fmt: skip


def answer(verdict: laws.Verdict) -> str:
    return "BROKEN" if verdict.broken else "-" if verdict.untried else "holds"


def print_verdicts(console: Console, found: list[laws.Verdict]) -> None:
    for recipe in dict.fromkeys(v.recipe for v in found):
        mine = [v for v in found if v.recipe == recipe]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in ("law", "", "what it says"):
            table.add_column(column, overflow="fold", no_wrap=column != "what it says")
        for v in mine:
            why = v.broken or v.untried
            table.add_row(v.law, answer(v), escape(laws.about(v.law) + (f"\n-> {why}" if why else "")))
        console.print(recipe, markup=False)
        console.print(table)
        tried, broken = [v for v in mine if not v.untried], sum(bool(v.broken) for v in mine)
        console.print(f"{counted(len(tried), 'law')} tried: " + (f"{broken} broken" if broken else "all hold"))
