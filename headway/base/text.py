"""Small texts: counts, folder names, short hashes."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any


def counted(n: int, noun: str) -> str:
    """`1 round`, `2 rounds`"""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def slug(text: str) -> str:
    """A folder name for a recipe: `moon(mu=5.0)+ccvr` stays readable, unsafe characters become `_`."""
    return re.sub(r"[^a-z0-9+=._,()-]", "_", text.lower()).strip(".") or "run"


def digest(value: Any) -> str:
    """A hash of the value's JSON, eight characters long."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]
