"""docs/add-a-method.md, followed literally: its files written, its commands typed, its output compared."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "add-a-method.md"
BLOCK = re.compile(r"^```(\w+)(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"Write `(\w+\.py)`:\s*\Z")
SAME = doctest.OutputChecker()


def blocks() -> list[tuple[str, str, str, str]]:
    """(language, mark, file to write, text) of each block, in the order of the page."""
    text = PAGE.read_text()
    found = []
    for match in BLOCK.finditer(text):
        named = FILE.search(text[: match.start()])
        found.append((match[1], match[2] or "", named[1] if named else "", match[3]))
    return found


def commands(text: str) -> list[tuple[str, str]]:
    """(command, what it prints) of a console block."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def shell(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_printed(command: str, printed: str, wanted: str, hashes: set[str]) -> None:
    """Compare line by line; ... stands for any text, SHA for a hash that is the same wherever it stands."""
    hashes |= set(re.findall(r"^([0-9a-f]{64}) ", printed, re.MULTILINE))
    plain = re.sub(r"[0-9a-f]{64} ", "SHA", printed)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert SAME.check_output(wanted, plain, options), f"{command}\n{plain}\ninstead of\n{wanted}"


def follow(folder: Path, marks: set[str]) -> set[str]:
    hashes: set[str] = set()
    for language, mark, file, text in blocks():
        if file:
            (folder / file).write_text(text)
        elif language == "console" and mark in marks:
            for command, wanted in commands(text):
                check_printed(command, shell(command, folder), wanted, hashes)
        elif language == "python" and mark == "run":
            (folder / "in_python.py").write_text(text)
            shell(f"{sys.executable} in_python.py", folder)
    return hashes


def test_the_page_has_what_the_test_looks_for():
    languages = [(language, mark, file) for language, mark, file, _ in blocks()]
    assert ("python", "", "efsign.py") in languages
    assert ("python", "", "parts.py") in languages
    assert ("console", "ray", "") in languages
    assert sum(len(commands(text)) for language, _, _, text in blocks() if language == "console") > 10


def test_the_method_has_about_twenty_lines():
    (text,) = [text for _, _, file, text in blocks() if file == "efsign.py"]
    assert len(text.splitlines()) <= 22


def test_every_step_does_what_the_page_says(tmp_path):
    assert len(follow(tmp_path, {""})) == 1  # one model: straight, resumed, on two workers


@pytest.mark.ray
@pytest.mark.slow
def test_every_step_does_what_the_page_says_on_ray_too(tmp_path):
    pytest.importorskip("ray")
    assert len(follow(tmp_path, {"", "ray"})) == 1
