"""What goes wrong by request, and how it is said: one sentence that names the field, the value and the fix."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class HeadwayError(Exception):
    """The request was wrong. The message is one sentence for the person who made it; the CLI exits with 2."""

    exit_code = 2


class ConfigError(HeadwayError):
    """A setting of the task is missing, out of range or unknown."""


class RecipeError(HeadwayError):
    """A recipe does not parse, or its pieces cannot work together."""


class WidthError(RecipeError):
    """A head that needs more features than the body gives."""


class DataError(HeadwayError):
    """A data set is unknown, missing, damaged or not what a classifier can learn from."""


class PartitionError(HeadwayError):
    """A partition that cannot be drawn, or does not belong to this data."""


class ModelError(HeadwayError):
    """A model that is unknown or does not fit its input or its weights file."""


class CheckpointError(HeadwayError):
    """A run directory or checkpoint that is damaged, in use, or belongs to another task."""


class EngineError(HeadwayError):
    """The place where clients should run is missing, cannot be reached, or fails again and again."""


class DiskError(HeadwayError):
    """The disk is full or refuses; what was there before is still whole."""

    exit_code = 74


def to_copy(*words: object) -> str:
    """A command of headway inside a sentence, so quoted that a shell takes it as it stands."""
    return f"`{shlex.join(['headway', *map(str, words)])}`"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean 'moon'?` when a known name is close, else what to do `otherwise`, or the known names."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return otherwise or "known: " + ", ".join(names)
