"""Nets that are built once per task and reused; kept outside the task, which is immutable, and freed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from headway.models.net import Net

T = TypeVar("T")
# A net must not refer to its task, or neither is ever freed.
_NETS: WeakKeyDictionary[object, dict[str, Net]] = WeakKeyDictionary()


def kept_net(owner: object, key: str, make: Callable[[], Net]) -> Net:
    """The owner's net under this key, made at the first call."""
    nets = _NETS.setdefault(owner, {})
    if key not in nets:
        nets[key] = make()
    return nets[key]


def share_nets(owner: object, other: T) -> T:
    """Let `other` use the owner's nets, and return it; for a task that differs from the owner only in its data."""
    _NETS[other] = _NETS.setdefault(owner, {})
    return other
