"""Every dependency of headway is pinned."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert {re.split(r"[<>=\[]", d)[0].lower() for d in named} - {project["name"]} <= pinned


def test_headway_is_found_beside_a_folder_of_its_name(tmp_path):
    """As in the folder that holds the clone: Python takes a folder without __init__ only if it finds no package."""
    (tmp_path / "headway").mkdir()
    code = "import headway; headway.Dataset"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
