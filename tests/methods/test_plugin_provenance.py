"""Who brings a name: its owner is recorded, nobody else takes it, and a changed owner is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from calling import headway as command

MODEL = """import headway
from torch import nn

def small2(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, classes))

headway.register_model('small2', small2)
"""

pytestmark = pytest.mark.usefixtures("in_tmp")


def written(text: str, name: str) -> Path:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


# ---- check
def test_check_takes_plugins():
    written(MODEL, "a.py")
    piece = "import headway\nclass Plain(headway.Piece):\n    name, slot = 'plain', 'reg'\n"
    written(piece, "plain.py")
    written(piece.replace("lain", "late"), "plate.py")
    done = command("check", "plain.py", "--plugin", "plate.py", "--recipe", "plain+fn", "--quiet")
    assert done.code in (0, 1), done.err
    assert "tried" in done.out
