"""Errors for the user. A message is one sentence that names the field, the value and the fix."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable


class HeadwayError(Exception):
    """The request cannot be fulfilled as given. The command line prints the message and exits with code 2."""

    exit_code = 2


class ConfigError(HeadwayError):
    """A setting of the task is missing, out of range or unknown."""


class RecipeError(HeadwayError):
    """A recipe does not parse, or its pieces cannot work together."""


class WidthError(RecipeError):
    """The head needs more features than the body has."""


class DataError(HeadwayError):
    """A data set is unknown, missing, damaged or unsuitable for classification."""


class PartitionError(HeadwayError):
    """A partition cannot be drawn, or does not belong to the data set."""


class ModelError(HeadwayError):
    """A model is unknown, or does not fit its input or its weights file."""


class PluginError(HeadwayError):
    """A plugin file is missing, cannot be run, or is not the one that a run was made with."""


class CheckpointError(HeadwayError):
    """A run directory or checkpoint is damaged, in use, or belongs to another task."""


class EngineError(HeadwayError):
    """An engine is missing, cannot be reached, or its workers fail repeatedly."""


class DiskError(HeadwayError):
    """The disk is full or cannot be written; earlier files are unchanged."""

    exit_code = 74


def to_copy(*words: object) -> str:
    """A headway command for use in a sentence, quoted so that it can be pasted into a shell."""
    return f"`{shlex.join(['headway', *map(str, words)])}`"


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean 'moon'?` when a known name is close, else what to do `otherwise`, or the known names."""
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return otherwise or "known: " + ", ".join(names)
