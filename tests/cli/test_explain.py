"""`headway explain`: what it prints."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path


def test_the_readme_shows_what_explain_prints():
    root = Path(__file__).parents[2]
    text = (root / "README.md").read_text()
    blocks = re.findall(r"```\n\$ (headway explain [^\n]+)\n(.*?)```", text, flags=re.S)
    assert blocks
    for command, shown in blocks:
        words = [sys.executable, "-m", *shlex.split(command)]
        printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=root).stdout
        assert [line.rstrip() for line in printed.splitlines()] == [line.rstrip() for line in shown.splitlines()]
