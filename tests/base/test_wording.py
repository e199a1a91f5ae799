"""A message advises what its reader can do: arguments in Python, options on the command line."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from calling import headway as command

import headway
from headway.analysis.export.export import export
from headway.base.errors import CheckpointError, ConfigError, HeadwayError
from headway.base.wording import either, on_command_line, option, resume_call, speak_as

PACKAGE = Path(headway.__file__).parent
WORDS = re.compile(r"(^|[\s(`'])--([a-z][a-z-]*|$)|`headway (run|compare|resume)\b")
OF_OTHER_PROGRAMS = re.compile(r"ray start --head|--object-store-memory|preprocess\.sh .*--sf")
ONLY_FOR_COMMANDS = {  # file or folder -> why its texts name options of the command line
    "cli": "the command line itself",
    "bench": "nothing but `headway bench` calls it",
    "analysis/reproduce": "nothing but `headway reproduce` calls it",
    "analysis/report/provenance.py": "the page shows the commands that repeat its runs",
    "analysis/report/leaderboard.py": "the page shows commands, and the same runs give the same page",
    "training/settings.py": "descriptions of settings, which `headway run --help` prints",
    "methods/plugins.py": "its words are looked after in its own tests",
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not any(name == excepted or name.startswith(f"{excepted}/") for excepted in ONLY_FOR_COMMANDS):
            yield name, parsed(path)


def for_both(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module without its docstrings and without what `either` says to commands alone."""
    for child in ast.iter_child_nodes(node):
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if is_text or (isinstance(child, ast.keyword) and child.arg == "command"):
            continue
        yield child
        yield from for_both(child)


def told(text: str) -> bool:
    """Whether a text is a sentence, not a word of a command, and names an option or a command that has its call."""
    return " " in text.strip() and WORDS.search(OF_OTHER_PROGRAMS.sub("", text)) is not None


def test_no_message_names_an_option_of_the_command_line_by_hand():
    found = {
        f"{name}:{node.lineno}: {node.value}"
        for name, module in sources()
        for node in for_both(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and told(node.value)
    }
    assert not found, "write option('out'), resume_call() or either(python=..., command=...)"


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("choose another --out", True),
        ("name one (--with ft)", True),
        ("; give --", True),
        ("then `headway resume` the run", True),
        ("start a head with `ray start --head`", False),
        ("--only-binary", False),
        ("see `headway list`", False),
    ],
)
def test_what_the_search_finds(text: str, is_told: bool):
    assert told(text) == is_told


def asked() -> list[tuple[str, str, bool]]:
    """(file, option, whether callers in Python are told of it too) for every call of `option`."""
    found = []
    for name, module in sources():
        both = list(for_both(module))
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "option":
                assert isinstance(node.args[0], ast.Constant), f"{name}:{node.lineno}: write the option's name here"
                found.append((name, str(node.args[0].value), node in both))
    return found


CALLS: dict[str, tuple[list[Callable[..., Any]], str]] = {  # folder -> the calls it serves, and the command
    "analysis/export": ([export, headway.run], "export"),  # it also advises how to train
    "analysis/report": ([headway.Run.report], "report"),
}


@pytest.mark.parametrize(("file", "name", "in_python"), asked())
def test_an_option_in_a_message_is_one_that_the_call_and_the_command_take(file: str, name: str, in_python: bool):
    calls, of = CALLS.get(str(Path(file).parent), ([headway.run], "run"))
    assert not in_python or any(name in inspect.signature(call).parameters for call in calls)
    options = {p.name for c in {of, "run"} for p in import_module(f"headway.cli.{c}").command.params}
    assert name in options


def test_workers_elsewhere_word_their_messages_as_the_process_that_started_them():
    speak_as(True)
    try:
        assert (on_command_line(), option("workers", 1), resume_call()) == (True, "--workers 1", "`headway resume RUN`")
        assert either(python="call", command="command") == "command"
    finally:
        speak_as(False)
    assert (option("workers", 1), resume_call()) == ("workers=1", "headway.resume(run)")


@pytest.mark.parametrize(
    ("given", "python", "words"),
    [
        ({"address": "h:1"}, "add engine='ray'", "add --engine ray"),
        ({"weights_head": True}, "give weights='FILE.safetensors'", "give --weights FILE.safetensors"),
        ({"data": "mnist", "data_dir": "no"}, "no (data_dir) is no folder", "no (--data-dir) is no folder"),
    ],
)
def test_a_refused_request_is_told_in_the_words_of_its_caller(
    given: dict[str, Any], python: str, words: str, tmp_path: Path
):
    with pytest.raises(HeadwayError) as told:
        headway.run("fedavg", out=tmp_path / "r", **given)
    assert python in str(told.value)
    typed = [f"--{k.replace('_', '-')}" + ("" if v is True else f"={v}") for k, v in given.items()]
    assert words in command("run", "fedavg", *typed, "--out", tmp_path / "r").err


def test_a_report_in_python_advises_what_it_takes(tmp_path: Path):
    run = headway.run("fedavg", out=tmp_path / "r", clients=2, rounds=1, train_size=60, model="mlp_small")
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(CheckpointError) as told:
        run.report(tmp_path / "mine.html")
    assert str(told.value).endswith("it is not a report of headway; choose another out")
    with pytest.raises(ConfigError, match="it is a folder"):
        run.report(tmp_path)
    said = command("report", run.path, "--out", tmp_path / "mine.html").err
    assert said.endswith("choose another --out, or --overwrite to replace it\n")
