"""A mistake in a user's own method is reported with the file, the line and the hook."""

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
