"""Recipe: several pieces folded into one, which is a piece itself; and `explain`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

from headway.base.errors import RecipeError, nearest
from headway.core.fold import folded
from headway.core.phase import Phase, Step
from headway.core.piece import HOOKS, SLOTS, Piece, acts
from headway.core.traits import PROVIDED, REQUIRED

SINGLE_SLOTS = ("base", "loss", "share", "personal", "calib")
RANKS: dict[str, int] = {}  # piece name -> its position among the registered pieces (core/registry.py)


class _FedAvg(Piece):
    """The defaults of the hooks, for those that no piece of a recipe defines."""

    name, slot = "fedavg", "base"


FEDAVG = _FedAvg()


def rank(piece: Piece) -> tuple[int, float, str]:
    """The sort key of a piece in a recipe: its slot, then its position in the registry, then its name."""
    return SLOTS.index(piece.slot), RANKS.get(piece.name, float("inf")), piece.name


@folded
@dataclass(frozen=True)
class Recipe(Piece):
    """Pieces folded into one. A recipe has every hook that a piece has, so the training code uses it like one piece.

    The order in which pieces are given has no effect: they are sorted by their position in the registry.
    """

    name: ClassVar[str] = "recipe"
    slot: ClassVar[str] = "recipe"
    pieces: tuple[Piece, ...]
    label: str = ""  # as the user wrote it

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(sorted(self.pieces, key=rank)))
        for slot in SINGLE_SLOTS:
            self._at_most_one(slot, [p for p in self.pieces if p.slot == slot])
        for hook, fold in HOOKS.items():
            if fold == "one":
                self._at_most_one(hook, self.acting(hook))
        self.head()
        for piece in self.pieces:
            refuse_unknown_traits(piece)

    def _at_most_one(self, what: str, pieces: Sequence[Piece]) -> None:
        if len(pieces) > 1:
            raise RecipeError(
                f"{self.spelled}: {pieces[0].name} and {pieces[1].name} both decide the {what}, "
                f"and a recipe has one; keep one of the two"
            )

    def __str__(self) -> str:
        """The recipe as text with all changed settings, from which it can be parsed again."""
        return "+".join(spell(p) for p in self.pieces)

    @property
    def names(self) -> str:
        return "+".join(p.name for p in self.pieces)

    @property
    def spelled(self) -> str:
        """The recipe as the user wrote it, with its pieces where that does not name them."""
        written = {term.split("(")[0] for term in self.label.split("+")}
        named = not self.label or {p.name for p in self.pieces} <= written | {FEDAVG.name}
        return self.names if named else f"{self.label} ({self.names})"

    @property
    def title(self) -> str:
        return self.label or str(self)

    @cached_property
    def _acting(self) -> dict[str, list[Piece]]:
        return {hook: [p for p in self.pieces if acts(p, hook)] for hook in HOOKS}

    def acting(self, hook: str) -> list[Piece]:
        """The pieces that define this hook."""
        return self._acting[hook]

    def decider(self, hook: str) -> Piece:
        """The piece that defines a hook marked @one, else FedAvg."""
        return next(iter(self.acting(hook)), FEDAVG)

    def owner(self, key: str) -> str:
        """The name of the piece that sets this option of the head; "the model" if none does."""
        return next((p.name for p in self.acting("head") if key in p.head()), "the model")

    def provider_of(self, trait: str) -> Piece | None:
        """The piece that provides this trait, or None."""
        return next((p for p in self.pieces if trait in p.provides()), None)

    @cached_property
    def trains_everyone(self) -> bool:
        return "all clients train" in self.provides()

    @cached_property
    def pools_data(self) -> bool:
        return "pooled data" in self.provides()

    def local_phases(self, epochs: int) -> list[Phase]:
        """The phases of local training, with the pieces' `step` hooks applied."""
        phases = self.phases(epochs)
        return [self._stepping(phase) for phase in phases] if self.acting("step") else phases

    def _stepping(self, phase: Phase) -> Phase:
        def step(step: Step, name: str) -> Step:
            return self.step(phase.step(step, name), name)

        return replace(phase, step=step)


def refuse_unknown_traits(piece: Piece) -> None:
    """Raise for a trait that nothing would look at, such as one with a typing mistake."""
    for hook, known in (("requires", REQUIRED), ("provides", PROVIDED.keys())):
        for trait in sorted(getattr(piece, hook)() - known):
            raise RecipeError(f"{piece.name}: its {hook}() names '{trait}', which is no trait; {nearest(trait, known)}")


def spell(piece: Piece) -> str:
    """`moon(mu=5.0)`: the piece with the settings that differ from their defaults."""
    changed = [f"{f.name}={getattr(piece, f.name)}" for f in fields(piece) if getattr(piece, f.name) != f.default]
    return f"{piece.name}({','.join(changed)})" if changed else piece.name


def explain(recipe: Recipe) -> list[tuple[str, str, list[str]]]:
    """(hook, fold, names of the pieces that define it), in the order of the round."""
    hooks = [(hook, fold) for hook, fold in HOOKS.items() if fold != "union"]  # traits are not part of the round
    return [(hook, fold, [p.name for p in recipe.acting(hook)]) for hook, fold in hooks if recipe.acting(hook)]


def summary_line(piece: Piece | type[Piece]) -> str:
    """The piece's paper in one line: the first paragraph of its module's docstring."""
    cls = piece if isinstance(piece, type) else type(piece)
    module = inspect.getmodule(cls)
    return " ".join(((module and inspect.getdoc(module)) or "").split("\n\n")[0].split())


def idea_line(piece: Piece | type[Piece]) -> str:
    """What the piece does: the first line of its class's docstring."""
    return (inspect.getdoc(piece if isinstance(piece, type) else type(piece)) or "").split("\n")[0]
