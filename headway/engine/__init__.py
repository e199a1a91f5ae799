"""Where clients run. An engine moves values and knows no method."""

from headway.engine.local import Engine, LocalEngine, PersonalResult
from headway.engine.pool import PoolEngine
from headway.engine.store import ClientStore, DirectoryStore, SpillingStore

__all__ = ["ClientStore", "DirectoryStore", "Engine", "LocalEngine", "PersonalResult", "PoolEngine", "SpillingStore"]
