"""Mistakes in a user's own method: a failing hook is reported with file and line, a wrong paper with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import headway as command

pytestmark = pytest.mark.usefixtures("in_tmp")

WRONG = '''"""A hook with a mistake in line 8."""
from headway import Piece

class Wrong(Piece):
    """It asks a tree for what it lacks."""
    name, slot = "wrong", "post"
    def correct(self, g, local):
        return g.nothing
'''
SMALL = ("--clients=2", "--rounds=1", "--train-size=60", "--model=mlp_small", "--quiet")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_hook_that_fails_ends_the_run_in_one_sentence(workers):
    Path("wrong.py").write_text(WRONG)
    done = command("run", "wrong", "--plugin", "wrong.py", "--workers", workers, "--out=r", *SMALL)
    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        "headway: plugin=wrong.py, line 8, in correct: AttributeError: 'Tree' object has no attribute 'nothing'; "
        "correct the file"
    )


def test_check_says_where_a_hook_fails():
    Path("wrong.py").write_text(WRONG)
    done = command("check", "wrong.py", "--quiet")
    assert done.code == 2
    assert "-> wrong.py, line 8, in correct: AttributeError" in " ".join(done.out.split())


def test_check_refuses_a_recipe_without_a_piece_of_the_file():
    Path("wrong.py").write_text(WRONG)
    done = command("check", "wrong.py", "--recipe", "fedavg")
    assert done.code == 2
    assert "recipe=fedavg: it has no piece of wrong.py; add wrong, such as fedavg+wrong" in done.err


PAPERLESS = """
import headway

class SmallLogits(headway.Piece):
    name, slot = "smalllogits", "reg"{paper}
"""


def test_a_piece_without_a_paper_is_noted_beside_the_citations():
    Path("mine.py").write_text(PAPERLESS.format(paper=""))
    done = command("cite", "smalllogits", "--plugin", "mine.py")
    assert (done.code, done.err) == (0, "note: smalllogits has no paper\n")
    assert done.out.startswith("@inproceedings{mcmahan2017fedavg,")


@pytest.mark.parametrize(
    ("paper", "fix"),
    [
        ("nosuchkey2020", "write an entry that begins with @, or leave paper out"),
        ("li2023fedetff", "did you mean 'li2023fedetf'?"),
    ],
)
def test_a_paper_that_is_neither_a_key_nor_bibtex_is_refused(paper, fix):
    Path("mine.py").write_text(PAPERLESS.format(paper=f"\n    paper = {paper!r}"))
    done = command("cite", "smalllogits", "--plugin", "mine.py")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"headway: smalllogits: paper='{paper}' is neither a known key nor a BibTeX entry; {fix}\n"
