"""Engines: they run clients in this process, in worker processes or on a Ray cluster, and keep the clients' states.

An engine depends on no method. It may import metrics, training and everything below them.
"""

from headway.engines.local import LocalEngine
from headway.engines.options import EngineOptions
from headway.engines.pool import PoolEngine
from headway.engines.store import ClientStore, DirectoryStore, SpillingStore
from headway.training.engine import Engine, PersonalResult

__all__ = [
    "ClientStore",
    "DirectoryStore",
    "Engine",
    "EngineOptions",
    "LocalEngine",
    "PersonalResult",
    "PoolEngine",
    "SpillingStore",
]
