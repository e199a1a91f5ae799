"""The grammar of recipes: splitting `moon(mu=5)+ccvr` into terms, and reading settings by their type."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headway.base.errors import RecipeError, nearest
from headway.core.piece import Piece
from headway.core.setting import other_names

PLACE = "#"  # prefix of the key of a value that is given by position
TERM = re.compile(r"^([a-z][a-z0-9_-]*)(?:\((.*)\))?$", re.DOTALL)


def settings_in(piece: Piece) -> dict[str, Any]:
    """The values of a piece's settings."""
    return {f.name: getattr(piece, f.name) for f in fields(piece)}


def split_terms(text: str) -> list[str]:
    """Split at the + signs outside parentheses, which are not part of numbers such as 1e+3."""
    terms, depth, current = [], 0, ""
    for char in text.lower():
        depth += (char == "(") - (char == ")")
        if char == "+" and depth == 0:
            terms.append(current.strip())
            current = ""
        else:
            current += char
    terms.append(current.strip())
    if depth != 0:
        raise RecipeError(f"{text!r}: the parentheses do not match; write name(key=value)")
    if not text.strip():
        raise RecipeError(f"recipe={text!r}: it is empty; name a recipe or a piece, such as fedavg or scaffold+fn")
    if not all(terms):
        raise RecipeError(f"{text!r}: a piece is missing beside a +; write name or name(key=value), joined with +")
    return terms


def settings_of(text: str, term: str) -> dict[str, str]:
    """The settings `key=value` of a term as text; values by position have the keys #0, #1, ...."""
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals and not any(k[0] != PLACE for k in given):
            given[f"{PLACE}{len(given)}"] = key  # a value by position, as in sphere(15)
            continue
        if not equals or not key or not value:
            example = f"{key}=1" if key.isidentifier() else "mu=1"
            raise RecipeError(f"{term}: '{part}' is not a setting; write key=value, such as {example}")
        if key in given:
            raise RecipeError(f"{term}: {key} is given twice; give it once")
        given[key] = value
    return given


def build(cls: type[Piece], given: Mapping[str, str], term: str, kept: Mapping[str, Any] | None = None) -> Piece:
    """The piece with these settings, read by their types; `kept`: further settings, as values."""
    hints = typing.get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    values: dict[str, Any] = dict(kept or {})
    order = [f.name for f in fields(cls)]
    for key, text in given.items():
        if key.startswith(PLACE):
            if text in known or not text:
                example = f"{text}=1" if text.isidentifier() else "mu=1"
                raise RecipeError(f"{term}: '{text}' is not a setting; write key=value, such as {example}")
            place = int(key.removeprefix(PLACE))
            key = order[place] if place < len(order) else text
        key = other_names(cls).get(key, key)
        if key not in known:
            fix = nearest(key, sorted(known)) if known else f"it has none, write {cls.name}"
            raise RecipeError(f"{term}: {cls.name} has no setting '{key}'; {fix}")
        values[key] = read(cls.name, key, text, hints[key])
    return cls(**values)


def read(piece: str, key: str, text: str, hint: Any) -> Any:
    """The text of a setting, converted to the type of its field."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in allowed and text in ("none", "null"):
        return None
    if bool in allowed and text in ("true", "yes", "false", "no"):
        return text in ("true", "yes")
    for kind, wanted in ((int, "a whole number"), (float, "a number")):
        if kind in allowed:
            try:
                return kind(text)
            except ValueError:
                if not {float, str} & (set(allowed) - {kind}):
                    raise RecipeError(f"{piece}({key}={text}): {key} must be {wanted}") from None
    if str in allowed:
        return text
    raise RecipeError(f"{piece}({key}={text}): {key} must be true or false")
