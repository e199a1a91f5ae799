"""The grammar of recipes: `moon(mu=5)+ccvr`, aliases, settings by type, the order that carries no meaning."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from headway.errors import RecipeError, nearest
from headway.piece import Piece
from headway.recipes import Recipe

SEE = "`headway list` has them all"
PLACE = "#"  # marks a value given by its place
TERM = re.compile(r"^([a-z][a-z0-9_-]*)(?:\((.*)\))?$", re.DOTALL)


@dataclass(frozen=True)
class Registry:
    """The pieces in their order, and the names that stand for several of them."""

    pieces: Sequence[type[Piece]]
    aliases: Mapping[str, str]
    default_base: type[Piece]
    company: Mapping[str, Callable[[Piece], Piece]] = field(default_factory=dict)  # base -> its own personalisation

    @property
    def by_name(self) -> dict[str, type[Piece]]:
        return {p.name: p for p in self.pieces}

    def names(self) -> list[str]:
        return [*self.by_name, *self.aliases]

    def parse(self, text: str) -> Recipe:
        """The recipe that the text describes; every mistake is one sentence."""
        chosen: dict[str, Piece] = {}
        for term in split_terms(text):
            for piece in self._expand(term, text):
                held = chosen.setdefault(piece.name, piece)
                if held != piece:
                    raise RecipeError(f"{text}: {piece.name} appears twice with different settings; name it once")
        bases = [p for p in chosen.values() if p.slot == "base"]
        if not bases:
            base = self.default_base()
            chosen[base.name] = base
        elif len(bases) > 1:
            chosen.pop(self.default_base.name, None)  # an explicit base overrides the one inside an alias
        for name, made in self.company.items():
            if name in chosen and not any(p.slot == "personal" for p in chosen.values()):
                friend = made(chosen[name])
                chosen[friend.name] = friend
        order = [p.name for p in self.pieces]
        pieces = sorted(chosen.values(), key=lambda p: order.index(p.name))
        label = re.sub(r"\s+", "", text).lower()
        return Recipe(tuple(pieces), label=label)

    def _expand(self, term: str, text: str) -> list[Piece]:
        match = TERM.match(term)
        if not match:
            raise RecipeError(f"{text!r}: '{term}' is not a piece; write name or name(key=value), joined with +")
        name, given = match[1], settings_of(match[2] or "", term)
        if name in self.by_name and name not in self.aliases:
            return [build(self.by_name[name], given, term)]
        if name not in self.aliases:
            raise RecipeError(f"{text}: there is no piece or recipe '{name}'; {nearest(name, self.names(), SEE)}")
        pieces = [
            self._expand(inner, text)[0] if inner.split("(")[0] != name else build(self.by_name[name], {}, term)
            for inner in split_terms(self.aliases[name])
        ]
        return self._hand_out(name, pieces, given)

    def _hand_out(self, alias: str, pieces: list[Piece], given: dict[str, str]) -> list[Piece]:
        """Settings of an alias go to the one piece in it that has a setting of that name."""
        for key, value in given.items():
            if key.startswith(PLACE):  # a bare value goes to the piece that tells the alias from its base
                i = max((i for i, p in enumerate(pieces) if fields(p)), default=0)
                pieces[i] = build(type(pieces[i]), {key: value}, alias, settings_in(pieces[i]))
                continue
            takers = [i for i, p in enumerate(pieces) if {key, p.also.get(key)} & {f.name for f in fields(p)}]
            if len(takers) != 1:
                known = sorted({f.name for p in pieces for f in fields(p)})
                names = "+".join(p.name for p in pieces)
                if takers:
                    why, fix = f"several pieces of {names} have a setting '{key}'", "spell the pieces out"
                else:
                    why = f"no piece of {names} has a setting '{key}'"
                    fix = nearest(key, known) if known else f"they have none; write {alias}"
                raise RecipeError(f"{alias}({key}={value}): {why}; {fix}")
            i = takers[0]
            pieces[i] = build(type(pieces[i]), {key: value}, alias, settings_in(pieces[i]))
        return pieces


def settings_in(piece: Piece) -> dict[str, Any]:
    return {f.name: getattr(piece, f.name) for f in fields(piece)}


def split_terms(text: str) -> list[str]:
    """Cut at the + signs that stand outside parentheses and outside numbers such as 1e+3."""
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
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (s.strip() for s in part.partition("="))
        if not equals and not any(k[0] != PLACE for k in given):
            given[f"{PLACE}{len(given)}"] = key  # a bare value, as in sphere(15): the settings in their order
            continue
        if not equals or not key or not value:
            example = f"{key}=1" if key.isidentifier() else "mu=1"
            raise RecipeError(f"{term}: '{part}' is not a setting; write key=value, such as {example}")
        if key in given:
            raise RecipeError(f"{term}: {key} is given twice; give it once")
        given[key] = value
    return given


def build(cls: type[Piece], given: Mapping[str, str], term: str, kept: Mapping[str, Any] | None = None) -> Piece:
    """The piece with its settings read by type."""
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
        key = cls.also.get(key, key)
        if key not in known:
            fix = nearest(key, sorted(known)) if known else f"it has none, write {cls.name}"
            raise RecipeError(f"{term}: {cls.name} has no setting '{key}'; {fix}")
        values[key] = read(cls.name, key, text, hints[key])
    return cls(**values)


def read(piece: str, key: str, text: str, hint: Any) -> Any:
    """The text of a setting as the type its field declares."""
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
