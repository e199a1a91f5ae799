"""What the tests of `headway diagnose` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headway.analysis.diagnostics import diagnose
from headway.analysis.diagnostics import separability as separability_module
from headway.analysis.diagnostics.catalogue import diagnostic
from headway.analysis.diagnostics.finding import Finding
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.methods import virtual_calibration

TASK = {"clients": 4, "rounds": 3, "train_size": 200, "test_size": 80, "model": "mlp_small", "partition": "dir(0.1)"}
OURS = ("labels", "four_factors", "norms", "classifier_norms", "collapse", "consistency", "separability")


def quick(monkeypatch: Any, *names: str) -> None:
    """Diagnostics without their figures and with short retraining: those are what takes time."""
    plain = {name: diagnostic(name) for name in names or OURS}

    def short(recipe: Recipe, shares_head: bool) -> tuple[Piece, ...]:
        return tuple(replace(piece, epochs=2) for piece in virtual_calibration(recipe, shares_head))  # type: ignore[call-arg]

    monkeypatch.setattr(separability_module, "virtual_calibration", short)
    monkeypatch.setattr(diagnose, "diagnostic", lambda name: lambda s: replace(plain[name](s), draw=None))


def plain(name: str, rows: Sequence[dict[str, Any]] = ({"a": 1},)) -> Finding:
    return Finding(name, name, "about", {"a": 1}, {"t": rows}, "alt.")
