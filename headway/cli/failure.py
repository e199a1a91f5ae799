"""How a command reports a mistake: one line on stderr."""

from __future__ import annotations

import sys


def fail(sentence: str, code: int) -> int:
    """Print the sentence on one line of stderr, without the control characters that names and values may hold."""
    line = "".join(c if c.isprintable() else " " for c in sentence)
    print(f"headway: {line}", file=sys.stderr)
    return code
