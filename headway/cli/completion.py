"""Completion in the shell: `--show-completion`, `--install-completion`, and what completes recipes and names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from headway.base.errors import ConfigError
from headway.base.lazy import LazyModule

if TYPE_CHECKING:
    from headway import data, methods, models
else:
    data, methods, models = LazyModule("headway.data"), LazyModule("headway.methods"), LazyModule("headway.models")

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_HEADWAY_COMPLETE"  # the shell's question to `headway`, as click has it

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completion_options() -> list[click.Parameter]:
    """The two options of `headway` itself."""
    return [
        click.Option(
            [name], is_flag=False, flag_value="auto", metavar="[SHELL]", is_eager=True, expose_value=False,
            callback=action, help=f"{about} ({', '.join(SHELLS)}; yours if not named)",
        )
        for name, action, about in (
            ("--install-completion", install, "install completion for a shell"),
            ("--show-completion", show, "print the completion script"),
        )
    ]  # fmt: skip


def show(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        click.echo(script(ctx.command, chosen(shell)))
        ctx.exit()


def install(ctx: click.Context, param: click.Parameter, shell: str | None) -> None:
    if shell is None:
        return
    shell = chosen(shell)
    home = Path.home()
    if shell == "fish":  # it reads this folder by itself
        place = home / ".config" / "fish" / "completions" / "headway.fish"
    else:
        place = home / ".local" / "share" / "headway" / f"completion.{shell}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(script(ctx.command, shell) + "\n")
        if shell != "fish":
            add_line(home / f".{shell}rc", f"source '{place}'")
    except OSError as error:
        raise ConfigError(
            f"install_completion={shell}: {error.filename} cannot be written ({error.strerror}); use --show-completion"
        ) from None
    click.echo(f"completion for {shell} is in {place}; open a new shell to use it")
    ctx.exit()


def add_line(path: Path, line: str) -> None:
    """Add the line to a start-up file that does not have it."""
    text = path.read_text() if path.exists() else ""
    if line not in text.splitlines():
        path.write_text(f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}\n")


def chosen(shell: str) -> str:
    name = Path(os.environ.get("SHELL", "")).name if shell == "auto" else shell
    if name not in SHELLS:
        raise ConfigError(f"shell={name!r}: there is no completion for it; name one of {', '.join(SHELLS)}")
    return name


def script(command: click.Command, shell: str) -> str:
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(command, {}, "headway", VARIABLE)
    return (made.source_template % made.source_vars()).strip()


# ---- values
def recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Pieces and recipes by name, also after a +."""
    before, plus, last = incomplete.rpartition("+")
    return [CompletionItem(before + plus + name) for name in methods.REGISTRY.names() if name.startswith(last)]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def model_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return items(["auto", *models.MODELS], incomplete)


def data_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return items(data.DATASETS, incomplete)


def words(*known: str) -> Complete:
    return lambda ctx, param, incomplete: items(known, incomplete)


def items(known: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]
