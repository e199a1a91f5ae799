"""Completion in the shell: what bash asks `headway` and what it gets, and how the script is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from calling import headway

from headway.cli.options import GROUPS, RUN_OPTIONS
from headway.training.settings import Settings

pytestmark = pytest.mark.usefixtures("in_tmp")


def completed(line: str) -> list[str]:
    """What bash is offered at the end of the line."""
    words = line.split(" ")
    env = {"_HEADWAY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    end = subprocess.run(
        [sys.executable, "-m", "headway"], capture_output=True, text=True, check=True, env=os.environ | env
    )
    return [answer.partition(",")[2] for answer in end.stdout.splitlines()]


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("headway ru", ["run", "runs"]),
        ("headway re", ["resume", "report", "reproduce"]),
        ("headway --vers", ["--version"]),
        ("headway run fedetf-", ["fedetf-nobalance", "fedetf-noproj", "fedetf-fixedtemp"]),
        ("headway run scaffold+etfp", ["scaffold+etfproj"]),
        ("headway compare fedavg scaf", ["scaffold"]),
        ("headway explain scaf", ["scaffold"]),
        ("headway run fedavg --batch", ["--batch-size"]),
        ("headway run fedavg --bn g", ["group"]),
        ("headway run fedavg --store ", ["auto", "memory", "disk"]),
        ("headway run fedavg --model mlp_s", ["mlp_small"]),
        ("headway run fedavg --data dig", ["digits"]),
        ("headway list mo", ["models"]),
        ("headway export a --to on", ["onnx"]),
    ],
)
def test_bash_is_offered(line, answers):
    assert completed(line) == answers


def test_an_empty_line_offers_every_command():
    assert {"run", "compare", "list", "reproduce"} <= set(completed("headway "))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_shown(shell):
    end = headway("--show-completion", shell)
    assert (end.code, end.err) == (0, "")
    assert "_HEADWAY_COMPLETE" in end.out
    assert f"{shell}_complete" in end.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_takes_the_script():
    Path("completion.bash").write_text(headway("--show-completion", "bash").out)
    end = subprocess.run(
        ["bash", "-c", "source ./completion.bash && complete -p headway"], capture_output=True, text=True, check=True
    )
    assert "headway" in end.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_installing_adds_one_line_to_the_start_up_file_once(shell, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    start = tmp_path / f".{shell}rc"
    start.write_text("alias ll='ls -l'")
    for _ in range(2):
        end = headway("--install-completion", shell)
        assert (end.code, end.err) == (0, "")
    script = tmp_path / ".local" / "share" / "headway" / f"completion.{shell}"
    assert script.exists()
    assert start.read_text() == f"alias ll='ls -l'\nsource '{script}'\n"


def test_the_shell_is_taken_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert headway("--install-completion").code == 0
    assert (tmp_path / ".config" / "fish" / "completions" / "headway.fish").exists()
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    end = headway("--show-completion")
    assert (end.code, end.out) == (2, "")
    assert end.err == "headway: shell='tcsh': there is no completion for it; name one of bash, zsh, fish\n"


# ---- groups of the help page
def test_every_option_stands_in_one_group():
    names = [name for group in GROUPS.values() for name in group]
    assert len(names) == len(set(names))
    assert set(names) == {*Settings.model_fields, *RUN_OPTIONS, "track", "tune", "overwrite", "json", "quiet"}


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_help_page_has_the_groups_in_their_order(command):
    page = headway(command, "-h").out
    places = [page.index(f"\n{title}:\n") for title in ("Arguments", *GROUPS, "Options")]
    assert places == sorted(places)
