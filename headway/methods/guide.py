"""What the papers say about a piece that its code cannot: the settings they ran, and where one goes wrong with it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files


@dataclass(frozen=True)
class Guide:
    """One entry of guide.toml; every part may be missing."""

    recipe: str  # a recipe that shows the piece: some need other pieces
    papers: Mapping[str, str] = field(default_factory=dict)  # setting -> the values the papers ran
    training: str = ""  # what the papers say about the training around it
    pitfalls: tuple[str, ...] = ()
    reveals: Mapping[str, str] = field(default_factory=dict)  # what each thing sent reveals of the client's data
    source: tuple[str, ...] = ()  # module:name of functions elsewhere that carry its formulas


@lru_cache
def guides() -> dict[str, Guide]:
    """Piece name -> its entry, as the file has them."""
    entries = tomllib.loads((files("headway.methods") / "guide.toml").read_text(encoding="utf-8"))
    return {name: _guide(name, entry) for name, entry in entries.items()}


def guide(name: str) -> Guide:
    """The entry of a piece; an empty one where none is written yet."""
    return guides().get(name) or Guide(name)


def _guide(name: str, entry: Mapping[str, object]) -> Guide:
    known = {"recipe": name, **entry}
    return Guide(**{key: tuple(v) if isinstance(v, list) else v for key, v in known.items()})  # type: ignore[arg-type]
