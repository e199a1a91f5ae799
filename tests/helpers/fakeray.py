"""A Ray of one process that answers at once: for what real clusters show too rarely, such as the death of a node.

The engine on real clusters is tested in tests/engines/ray/test_clusters.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception):
        self.cause = cause


class ActorDiedError(RayError):
    pass


class Ref:
    def __init__(self, value: Any = None, error: Exception | None = None):
        self.value, self.error = value, error


class Actor:
    """A worker; `dead` ones answer nothing any more."""

    def __init__(self, ray: FakeRay, made: Any):
        self._ray, self._made, self.dead = ray, made, False

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._call(name, args))

    def _call(self, name: str, args: tuple[Any, ...]) -> Ref:
        if self.dead:
            return Ref(error=ActorDiedError())
        self._ray.asked.append((self, name))
        values = [arg.value if isinstance(arg, Ref) else arg for arg in args]
        for value in values:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # as the object store hands it out
        try:
            return Ref(getattr(self._made, name)(*values))
        except Exception as error:
            return Ref(error=RayTaskError(error))


class FakeRay:
    """The few calls that headway makes of Ray."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.asked: list[tuple[Actor, str]] = []
        self.stored: list[Any] = []

    def put(self, value: Any) -> Ref:
        self.stored.append(value)
        return Ref(value)

    def get(self, ref: Ref) -> Any:
        if ref.error is not None:
            raise ref.error
        return ref.value

    def wait(self, refs: Sequence[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        return list(refs[:1]), list(refs[1:])

    def kill(self, actor: Actor) -> None:
        actor.dead = True

    def remote(self, kind: Callable[[str], Any]) -> Any:
        def hire(order: str) -> Actor:
            self.actors.append(Actor(self, kind(order)))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **how: SimpleNamespace(remote=hire))


class FakeSession:
    """A session of four CPUs."""

    def __init__(self, address: str | None = None, cpus: int = 4) -> None:
        self.ray = FakeRay()

    def cpus(self) -> int:
        return 4

    def gpus(self) -> int:
        return 0

    def close(self) -> None:
        """There is nothing to end."""
