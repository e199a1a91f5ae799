"""Options of the engine. Only `threads` and `device` can change the bits of a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headway.base.errors import ConfigError


class Messages(Protocol):
    """Prints an engine's messages for the user."""

    def say(self, text: str) -> None:
        """Print one sentence."""


class Silent:
    """Prints nothing."""

    def say(self, text: str) -> None:
        """Ignore the sentence."""


@dataclass(frozen=True)
class EngineOptions:
    """How clients are trained: device, processes, threads, cluster, and where their states are kept."""

    device: str = "cpu"
    threads: int | None = 1  # of one process; bits depend on it, so the default does not depend on the machine
    workers: int | None = 1  # processes that train clients; None, or auto: one per core
    engine: str = "local"  # or ray
    address: str | None = None  # HOST:PORT of a running Ray cluster, or auto; None: a private one on this machine
    store: str = "auto"  # of client states: memory, disk, or auto: up to a quarter of the memory, the rest on disk
    progress: Messages = field(default_factory=Silent)

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", workers_beside(self.threads, self.workers, self.engine))


def workers_beside(threads: int | None, workers: int | str | None, engine: str) -> int | None:
    """The number of workers, None for automatic; with several threads the local engine has no workers.

    A local worker has one thread and bits depend on the number of threads, so a run with several threads would give
    other results in workers.
    """
    if workers in (None, "auto"):
        return 1 if engine == "local" and threads != 1 else None
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ConfigError(f"workers={workers}: it is not a number of processes; use auto or a whole number from 1")
    if workers > 1 and engine == "local" and threads != 1:
        raise ConfigError(f"workers={workers}: workers have one thread each and threads={threads}; give one of the two")
    return workers
