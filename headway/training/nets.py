"""Nets and facts that are made once per task and reused; kept outside the task, which is immutable; freed with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
# A net must not refer to its task, or neither is ever freed.
_KEPT: WeakKeyDictionary[object, dict[str, Any]] = WeakKeyDictionary()


def kept(owner: object, key: str, make: Callable[[], T]) -> T:
    """The owner's value under this key, such as a net; made at the first call."""
    values = _KEPT.setdefault(owner, {})
    if key not in values:
        values[key] = make()
    value: T = values[key]
    return value


def share_nets(owner: object, other: T) -> T:
    """Let `other` use the owner's nets, and return it; for a task that differs from the owner only in its data."""
    _KEPT[other] = _KEPT.setdefault(owner, {})
    return other
