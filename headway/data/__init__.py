"""Data sets as arrays: by name with checksums, from the user's own files, or registered; and their partitions.

It may import headway.base alone. Importing it costs neither torch nor numpy: `Dataset` and `load` come when used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway.data.sources.catalogue import DATASETS, register_dataset

if TYPE_CHECKING:
    from headway.data.arrays import Dataset
    from headway.data.datasets import load

__all__ = ["DATASETS", "Dataset", "load", "register_dataset"]
_HOMES = {"Dataset": "headway.data.arrays", "load": "headway.data.datasets"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headway.data' has no attribute '{name}'")
