"""Settings of a piece: their declaration, limits, neutral values and other names."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any

from headway.base.errors import RecipeError

if TYPE_CHECKING:
    from headway.core.piece import Piece

MISSING: Any = object()


def setting(
    default: Any,
    about: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Sequence[str] = (),
    also: str = "",
    neutral: Any = MISSING,
) -> Any:
    """A setting of a piece: a field of its frozen dataclass.

    Args:
        default: the value where a recipe does not give one.
        about: its meaning in a few words, with the paper's symbol; `headway list` prints it.
        ge, gt, le, lt: the limits of a number.
        choices: the values a text may have.
        also: another name of the setting, as papers and tables write it.
        neutral: the value at which the piece changes nothing; `headway check` tests it.

    Returns:
        What `dataclasses.field` returns.

    Raises:
        RecipeError: When a piece is made with a value outside the limits.

    Example:
        >>> from dataclasses import dataclass
        >>> from headway import Piece, setting
        >>> @dataclass(frozen=True)
        ... class Shrink(Piece):
        ...     name, slot = "shrink", "reg"
        ...     mu: float = setting(0.1, "mu, strength", ge=0, neutral=0.0)
        >>> Shrink(mu=-1)
        Traceback (most recent call last):
        headway.base.errors.RecipeError: shrink(mu=-1): mu must be a finite number >= 0
    """
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "choices": tuple(choices)}
    return field(default=default, metadata={"about": about, "also": also, "neutral": neutral, **limits})


def neutral_settings(piece: type[Piece]) -> dict[str, Any] | None:
    """Settings at which the piece changes nothing; {} for a piece that is a default, None if there are no such ones."""
    named = {f.name: f.metadata["neutral"] for f in fields(piece) if f.metadata.get("neutral", MISSING) is not MISSING}
    return named or ({} if "default" in piece().provides() else None)


def other_names(piece: type[Piece]) -> dict[str, str]:
    """Other name of a setting -> its name."""
    return {f.metadata["also"]: f.name for f in fields(piece) if f.metadata.get("also")}


def check_setting(piece: str, name: str, value: Any, rule: Mapping[str, Any], whole: bool = False) -> None:
    """Raise RecipeError for a value outside its range; the message has the range."""
    if value is None or isinstance(value, bool):
        return
    if choices := rule.get("choices"):
        if value not in choices:
            raise RecipeError(f"{piece}({name}={value}): {name} is one of {', '.join(choices)}")
        return
    if not isinstance(value, int | float):
        return
    compare = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = {key: rule[key] for key in compare if rule.get(key) is not None}
    fits = math.isfinite(value) and (isinstance(value, int) or not whole)
    if not fits or not all(compare[key](value, bound) for key, bound in bounds.items()):
        wanted = " and ".join(f"{signs[key]} {bound:g}" for key, bound in bounds.items())
        kind = "a whole number" if whole else "a finite number"
        raise RecipeError(f"{piece}({name}={value}): {name} must be {kind} {wanted}".rstrip())
