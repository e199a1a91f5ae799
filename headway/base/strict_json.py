"""Values for strict JSON, which has no NaN and no infinity."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """The value with NaN and infinity replaced by None."""
    if isinstance(value, dict):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
