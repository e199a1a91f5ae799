"""Predicates on parameter names: which part of the net a parameter belongs to."""

from __future__ import annotations

from collections.abc import Callable

Names = Callable[[str], bool]


def everything(name: str) -> bool:
    return True


def nothing(name: str) -> bool:
    return False


def in_head(name: str) -> bool:
    return name.startswith("head.")


def in_body(name: str) -> bool:
    return name.startswith("body.")
