"""headway: federated learning when every client sees a different mix of labels.

>>> import headway
>>> run = headway.run("scaffold+fn", data="digits", partition="dir(0.1)", clients=20, rounds=20)
>>> 0 < run.summary["global_acc"] < 1
True
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING

from headway.base.version import __version__ as __version__

if _TYPE_CHECKING:
    from headway.api import compare, recipe, run
    from headway.core.piece import Piece
    from headway.core.recipe import Recipe
    from headway.core.setting import setting
    from headway.data import Dataset, register_dataset
    from headway.data.partitions.spec import register_partition
    from headway.methods.plugins import load_plugin, register
    from headway.models import register_model
    from headway.runs.compare import Comparison
    from headway.runs.options import Options
    from headway.runs.run import Run
    from headway.runs.runner import resume
    from headway.runs.search import runs
    from headway.training.task import Task

_HOMES = {
    "run": "headway.api",
    "compare": "headway.api",
    "recipe": "headway.api",
    "resume": "headway.runs.runner",
    "runs": "headway.runs.search",
    "Run": "headway.runs.run",
    "Comparison": "headway.runs.compare",
    "Dataset": "headway.data",
    "Task": "headway.training.task",
    "Options": "headway.runs.options",
    "Piece": "headway.core.piece",
    "Recipe": "headway.core.recipe",
    "setting": "headway.core.setting",
    "register": "headway.methods.plugins",
    "load_plugin": "headway.methods.plugins",
    "register_model": "headway.models.catalogue",
    "register_dataset": "headway.data.sources.catalogue",
    "register_partition": "headway.data.partitions.spec",
}
__all__ = [
    "Comparison", "Dataset", "Options", "Piece", "Recipe", "Run", "Task", "compare", "load_plugin", "recipe",
    "register", "register_dataset", "register_model", "register_partition", "resume", "run", "runs", "setting",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Public names are loaded when they are first used: `headway --help` need not wait for torch."""
    if name in _HOMES:
        return getattr(_importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headway' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
