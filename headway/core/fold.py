"""Folding: how a recipe combines the hooks of several pieces into one, by the mark of each hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.base.errors import RecipeError
from headway.base.lazy import torch
from headway.core.piece import HOOKS, Piece

if TYPE_CHECKING:
    from headway.core.recipe import Recipe

Folded = Callable[..., Any]

# Arguments with these names have a part for each piece; a piece gets its own part.
NARROW: dict[str, Callable[[Any, Piece], Any]] = {
    "local": lambda local, piece: local.of(piece),
    "arrived": lambda arrived, piece: arrived.of(piece),
    "kept": lambda notes, piece: notes.get(piece.name, {}),
    "sent": lambda notes, piece: notes.get(piece.name, {}),
    "surveys": lambda surveys, piece: (survey.get(piece.name, {}) for survey in surveys),
}


def arguments(hook: str) -> list[str]:
    """The names of a hook's arguments, without self."""
    return list(inspect.signature(getattr(Piece, hook)).parameters)[1:]


def narrowed(hook: str) -> Callable[[Piece, tuple[Any, ...]], list[Any]]:
    """A function that reduces the arguments of a hook to the parts of one piece."""
    places = [NARROW.get(name) for name in arguments(hook)]

    def narrow(piece: Piece, args: tuple[Any, ...]) -> list[Any]:
        return [arg if f is None else f(arg, piece) for f, arg in zip(places, args, strict=True)]

    return narrow


def one(hook: str) -> Folded:
    """The piece that defines the hook decides; if there is none, FedAvg does."""
    narrow = narrowed(hook)

    def folded(self: Recipe, *args: Any) -> Any:
        piece = self.decider(hook)
        return getattr(piece, hook)(*narrow(piece, args))

    return folded


def chain(hook: str) -> Folded:
    """Each piece transforms the first argument; if the hook reads notes, a piece without a note is skipped."""
    narrow = narrowed(hook)
    notes = arguments(hook).index("kept") if "kept" in arguments(hook) else None

    def folded(self: Recipe, value: Any, *args: Any) -> Any:
        for piece in self.acting(hook):
            mine = narrow(piece, (value, *args))
            if notes is None or mine[notes]:
                value = getattr(piece, hook)(*mine)
        return value

    return folded


def total(hook: str) -> Folded:
    """The results are added up in the order of the pieces."""
    narrow = narrowed(hook)

    def folded(self: Recipe, *args: Any) -> Any:
        return sum((getattr(p, hook)(*narrow(p, args)) for p in self.acting(hook)), torch.zeros(()))

    return folded


def merge(hook: str) -> Folded:
    """The pieces' named values in one dict; two pieces that give a name different values are an error."""
    narrow = narrowed(hook)

    def folded(self: Recipe, *args: Any) -> Any:
        united = getattr(Piece, hook)(self, *args)
        owner: dict[str, str] = {}
        for piece in self.acting(hook):
            for key, value in getattr(piece, hook)(*narrow(piece, args)).items():
                held = united.setdefault(key, value)
                if held is not value and (hasattr(value, "shape") or held != value):
                    raise RecipeError(
                        f"{self.spelled}: {owner[key]} sets the {hook}'s {key} to {held!r} and {piece.name} "
                        f"to {value!r}; keep one of the two"
                    )
                owner.setdefault(key, piece.name)
        return united

    return folded


def own(hook: str) -> Folded:
    """The result of each piece, by the piece's name."""
    narrow = narrowed(hook)

    def folded(self: Recipe, *args: Any) -> Any:
        return {p.name: getattr(p, hook)(*narrow(p, args)) for p in self.acting(hook)}

    return folded


def union(hook: str) -> Folded:
    """The union of the pieces' sets."""

    def folded(self: Recipe) -> Any:
        return set().union(*(getattr(p, hook)() for p in self.acting(hook)))

    return folded


FOLDS: dict[str, Callable[[str], Folded]] = {
    "one": one, "chain": chain, "total": total, "merge": merge, "own": own, "union": union,
}  # fmt: skip


def folded(cls: type[Recipe]) -> type[Recipe]:
    """Class decorator: add every hook, folded by its mark."""
    for hook, mark in HOOKS.items():
        method = FOLDS[mark](hook)
        method.__name__, method.__doc__ = hook, getattr(Piece, hook).__doc__
        setattr(cls, hook, method)
    return cls
