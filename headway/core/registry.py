"""Registry: the pieces by name and in their order, aliases for sums of pieces, and parsing of recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, fields

from headway.base.errors import RecipeError, nearest
from headway.base.registered import discover, nearest_known
from headway.core.grammar import PLACE, TERM, build, settings_in, settings_of, split_terms
from headway.core.piece import SLOTS, Piece
from headway.core.recipe import RANKS, Recipe
from headway.core.setting import other_names

SEE = "`headway list` shows them all"


class Registry:
    """The known pieces. `register` adds one; `parse` reads a recipe.

    Args:
        pieces: classes in the order in which recipes name them.
        aliases: name -> the sum of pieces that it means.
        default_base: the base of a recipe that names none.
        implied: base -> the personalisation piece that is added if a recipe names none.
    """

    def __init__(
        self,
        pieces: Iterable[type[Piece]],
        aliases: Mapping[str, str],
        default_base: type[Piece],
        implied: Mapping[str, Callable[[Piece], Piece]] | None = None,
    ) -> None:
        self.pieces: list[type[Piece]] = []
        self.aliases: dict[str, str] = {}
        self.default_base = default_base
        self.implied = dict(implied or {})
        for rank, piece in enumerate(pieces):
            self.register(piece)
            RANKS[piece.name] = rank
        self.built_in = frozenset(self.by_name)
        self.aliases.update(aliases)

    @property
    def by_name(self) -> dict[str, type[Piece]]:
        return {p.name: p for p in self.pieces}

    def names(self) -> list[str]:
        discover()
        return [*self.by_name, *self.aliases]

    def register(self, piece: type[Piece]) -> None:
        """Add a piece after the known ones; a class that is defined again replaces its earlier definition."""
        check_class(piece)
        held = self.by_name.get(piece.name)
        if held is None and piece.name not in self.aliases:
            self.pieces.append(piece)
        elif held is not None and (held.__module__, held.__qualname__) == (piece.__module__, piece.__qualname__):
            self.pieces[self.pieces.index(held)] = piece
        else:
            raise RecipeError(f"{piece.name}: there is a piece or recipe of this name; choose another name")

    def unregister(self, name: str) -> None:
        """Remove a piece that `register` added."""
        self.pieces = [p for p in self.pieces if p.name != name or name in self.built_in]

    def parse(self, text: str) -> Recipe:
        """The recipe that the text describes; raises RecipeError with one sentence if there is a mistake."""
        chosen: dict[str, Piece] = {}
        for term in split_terms(text):
            for piece in self._expand(term, text):
                held = chosen.setdefault(piece.name, piece)
                if held != piece:
                    raise RecipeError(f"{text}: {piece.name} appears twice with different settings; name it once")
        label = re.sub(r"\s+", "", text).lower()
        return Recipe(tuple(self._completed(chosen).values()), label=label)

    def sum_of(self, pieces: Iterable[Piece]) -> Recipe:
        """A recipe of pieces given as objects, completed like a parsed one by a base and its implied piece."""
        chosen: dict[str, Piece] = {}
        for piece in pieces:
            check_class(type(piece))
            name = piece.name
            if name in self.built_in | self.aliases.keys() and self.by_name.get(name) is not type(piece):
                raise RecipeError(
                    f"{name}: headway has another piece of that name; give {type(piece).__name__} another name"
                )
            if chosen.setdefault(name, piece) != piece:
                raise RecipeError(f"{name}: it appears twice with different settings; name it once")
        return Recipe(tuple(self._completed(chosen).values()))

    def _completed(self, chosen: dict[str, Piece]) -> dict[str, Piece]:
        bases = [p for p in chosen.values() if p.slot == "base"]
        if not bases:
            chosen[self.default_base.name] = self.default_base()
        elif len(bases) > 1:
            chosen.pop(self.default_base.name, None)  # an explicit base replaces the one in an alias
        for name, make in self.implied.items():
            if name in chosen and not any(p.slot == "personal" for p in chosen.values()):
                implied = make(chosen[name])
                chosen[implied.name] = implied
        return chosen

    def _expand(self, term: str, text: str) -> list[Piece]:
        match = TERM.match(term)
        if match and match[1] not in self.by_name and match[1] not in self.aliases:
            discover()
        if not match:
            raise RecipeError(f"{text!r}: '{term}' is not a piece; write name or name(key=value), joined with +")
        name, given = match[1], settings_of(match[2] or "", term)
        if name in self.by_name and name not in self.aliases:
            return [build(self.by_name[name], given, term)]
        if name not in self.aliases:
            raise RecipeError(f"{text}: there is no piece or recipe '{name}'; {nearest_known(name, self.names(), SEE)}")
        pieces = [
            self._expand(inner, text)[0] if inner.split("(")[0] != name else build(self.by_name[name], {}, term)
            for inner in split_terms(self.aliases[name])
        ]
        return self._with_settings(name, pieces, given)

    def _with_settings(self, alias: str, pieces: list[Piece], given: dict[str, str]) -> list[Piece]:
        """The pieces of an alias with these settings; each goes to the only piece that has a setting of that name."""
        for key, value in given.items():
            if key.startswith(PLACE):  # a value by position goes to the last piece that has settings
                i = max((i for i, p in enumerate(pieces) if fields(p)), default=0)
                pieces[i] = build(type(pieces[i]), {key: value}, alias, settings_in(pieces[i]))
                continue
            takers = [
                i for i, p in enumerate(pieces)
                if {key, other_names(type(p)).get(key)} & {f.name for f in fields(p)}
            ]  # fmt: skip
            if len(takers) != 1:
                known = sorted({f.name for p in pieces for f in fields(p)})
                names = "+".join(p.name for p in pieces)
                if takers:
                    why, fix = f"several pieces of {names} have a setting '{key}'", "write the pieces instead"
                else:
                    why = f"no piece of {names} has a setting '{key}'"
                    fix = nearest(key, known) if known else f"they have none; write {alias}"
                raise RecipeError(f"{alias}({key}={value}): {why}; {fix}")
            i = takers[0]
            pieces[i] = build(type(pieces[i]), {key: value}, alias, settings_in(pieces[i]))
        return pieces


def check_class(piece: type[Piece]) -> None:
    """Raise RecipeError if a class is not a piece, or has no valid name, slot or settings."""
    if not isinstance(piece, type) or not issubclass(piece, Piece):
        raise RecipeError(f"{piece!r}: it is not a piece; give a class that derives from headway.Piece")
    name, slot = getattr(piece, "name", None), getattr(piece, "slot", None)
    if not isinstance(name, str) or not TERM.match(name) or "(" in name:
        raise RecipeError(
            f"{piece.__name__}: name={name!r} cannot be used in a recipe; use small letters, digits, _ and -, "
            f"and begin with a letter"
        )
    unmade = [key for key, value in vars(piece).items() if isinstance(value, Field)]
    if unmade:  # dataclass() would have removed them
        raise RecipeError(
            f"{piece.__name__}: its setting {unmade[0]} is not read; put @dataclass(frozen=True) before the class"
        )
    if slot not in SLOTS:
        raise RecipeError(f"{name}: slot={slot!r} is none of {', '.join(SLOTS)}; choose one of them")
