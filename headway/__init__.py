"""headway: federated learning when every client sees a different mix of labels.

>>> import headway
>>> run = headway.run("scaffold+fn", data="digits", partition="dir(0.1)", clients=20, rounds=20)
>>> run.summary["global_acc"]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headway.api import compare, run
    from headway.comparison import Comparison
    from headway.data import Dataset
    from headway.experiment import Options, resume
    from headway.found_runs import runs
    from headway.methods import recipe
    from headway.rundir import Run
    from headway.task import Task

_HOMES = {
    "run": "headway.api", "compare": "headway.api", "recipe": "headway.methods", "resume": "headway.experiment",
    "Run": "headway.rundir", "Comparison": "headway.comparison", "Dataset": "headway.data", "Task": "headway.task",
    "Options": "headway.experiment", "runs": "headway.found_runs",
}  # fmt: skip
__all__ = ["Comparison", "Dataset", "Options", "Run", "Task", "compare", "recipe", "resume", "run", "runs"]


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used: `headway --help` need not wait for torch."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headway' has no attribute '{name}'")
