"""What JSON can hold: numbers that are numbers."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
