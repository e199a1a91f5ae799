"""The figures a finished run is summed up by, as leaderboards, lists and reports show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def traffic(summary: dict[str, Any]) -> tuple[float, float]:
    """Bytes up and down, those of a calibration at the end included."""
    up, down = (summary[f"bytes_{way}"] + summary.get(f"survey_bytes_{way}", 0) for way in ("up", "down"))
    return up, down


FIGURES: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "global": lambda s: s["global_acc"],
    "last5": lambda s: s["last5"],
    "best": lambda s: s["best"],
    "balanced": lambda s: s["balanced_acc"],
    "personal": lambda s: s["personal"] and s["personal"]["mean"],
    "personal_std": lambda s: s["personal"] and s["personal"]["std"],
    "pooled": lambda s: s["personal"] and s["personal"]["pooled"],
    "megabytes": lambda s: sum(traffic(s)) / 1e6,
    "seconds": lambda s: s["seconds"],
}
