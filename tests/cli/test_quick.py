"""Commands that only look something up, or refuse a typing mistake, answer without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.app import COMMANDS

pytestmark = pytest.mark.usefixtures("in_tmp")

WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise AssertionError(f"{{name}} was imported")

sys.meta_path.insert(0, Refuse())
sys.argv = ["headway", *{words!r}]
from headway.cli.app import main
main()
"""


def headway_without(refused: tuple[str, ...], *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`headway words...` in a process in which some packages cannot be imported."""
    code = WITHOUT.format(refused=refused, words=list(words))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | env
    )


QUICK = [
    ("list",),
    ("list", "pieces", "--json"),
    ("list", "recipes"),
    ("list", "models"),
    ("list", "data"),
    ("list", "partitions"),
    ("explain", "scaffold+fn"),
    ("explain", "ccvr", "--json"),
    ("explain", "fedavg", "--privacy"),
    ("explain", "fedproto", "--privacy", "--json"),
    ("explain", "babu+spread"),  # a run is refused
    ("explain", "fedetf+ccvr(replace_head=true)+gmv(space=raw)"),
    ("cite", "fedetf"),
    ("runs",),
    ("runs", "--json"),
    ("runs", "--where", "recipe=fed*", "--sort=global"),
]
MISTAKES = [
    (("run", "fedavgg"), "did you mean 'fedavg'"),
    (("compare", "fedavg", "scafold"), "did you mean 'scaffold'"),
    (("explain", "fedavgg"), "did you mean 'fedavg'"),
    (("cite", "fedavgg"), "did you mean 'fedavg'"),
    (("run", "moon(mux=1)"), "did you mean 'mu'"),
    (("run", "fedavg", "--lrr=1"), "did you mean '--lr'"),
    (("run", "fedavg", "--privacy"), "it belongs to `headway explain`"),
    (("run", "fedavg", "--lr=nan"), "lr must be a finite number"),
    (("run", "fedavg", "--set", "lrr=1"), "did you mean 'lr'"),
    (("rum", "fedavg"), "did you mean 'run'"),
    (("list", "modls"), "did you mean 'models'"),
]


@pytest.fixture
def one_run(in_tmp):
    """A run directory as `headway runs` reads it."""
    folder = Path("runs/a")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"recipe": "fedavg", "label": "fedavg", "settings": {}}))


@pytest.mark.usefixtures("one_run")
@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_looking_something_up_needs_no_torch(words):
    end = headway_without(("torch",), *words)
    assert (end.returncode, end.stderr) == (0, "")
    assert end.stdout


@pytest.mark.parametrize(("words", "said"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_typing_mistake_needs_no_torch(words, said):
    end = headway_without(("torch",), *words)
    assert end.returncode == 2
    assert said in end.stderr
    assert end.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("--version",)], ids=" ".join)
def test_the_first_page_needs_nothing_but_click(words):
    end = headway_without(("torch", "numpy", "rich", "pydantic", "matplotlib", "sklearn"), *words)
    assert (end.returncode, end.stderr) == (0, "")
    assert end.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_page_needs_no_torch(name):
    end = headway_without(("torch", "matplotlib", "sklearn"), name, "-h")
    assert (end.returncode, end.stderr) == (0, "")
    assert end.stdout.startswith(f"Usage: headway {name} ")
