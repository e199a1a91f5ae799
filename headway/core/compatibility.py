"""Which pieces cannot be combined, and why. The general rules are here; a rule about a single piece is in its `check`.

A piece `requires` traits of the rest of its recipe (core/traits.py lists them). If the recipe lacks one, the error
names both pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from headway.base.errors import RecipeError
from headway.core.piece import Piece
from headway.core.recipe import Recipe
from headway.core.traits import LACKING
from headway.models.head_kinds import HEAD_KINDS

TRAINED_FEATURES = ("proj+l2",)  # kinds of head features with parameters of their own


@dataclass(frozen=True)
class Setup:
    """A recipe with the model's size and the settings against which it is checked; None where not known yet."""

    recipe: Recipe
    dim: int  # features of the body, d
    classes: int  # C
    rounds: int | None = None
    lr: float | None = None
    persist_momentum: bool = False
    personal_from: str = "global"


class Lack(NamedTuple):
    """A trait that a recipe lacks, and the piece that takes it away."""

    trait: str
    owner: str


def check(setup: Setup) -> list[str]:
    """Raise RecipeError for what cannot work; the message names both pieces and the fix. Returns advice."""
    recipe = setup.recipe
    lacks = {lack.trait: lack for lack in reversed(list(lacking(recipe)))}
    for piece in recipe.pieces:
        for trait in sorted(piece.requires() & lacks.keys(), key=list(LACKING).index):
            refuse_lack(recipe, piece, lacks[trait])
        _frozen_and_share(recipe, piece)
        _two_classifiers(recipe, piece)
    _settings(setup)
    return [advice for answers in recipe.check(setup).values() for advice in answers]  # type: ignore[attr-defined]


def lacking(recipe: Recipe) -> Iterator[Lack]:
    """The traits that this recipe lacks."""
    holder, share = recipe.owner("weights"), recipe.decider("share").name
    if is_frozen(recipe):
        yield Lack("trained classifier", holder)
    if not trains_head(recipe):
        yield Lack("trained head", holder)
    if alone := recipe.provider_of("isolated clients"):
        yield Lack("server", alone.name)
    if other := two_headed(recipe) or ("" if recipe.share("head.weight") else share):
        yield Lack("shared classifier", other)
    if not recipe.share("body.weight"):
        yield Lack("global body", share)
    if recipe.acting("gradient"):
        yield Lack("plain gradient", recipe.decider("gradient").name)


def is_frozen(recipe: Recipe) -> bool:
    """Whether the class vectors are not trained."""
    return bool(recipe.head().get("weights", "trainable") != "trainable")


def trains_head(recipe: Recipe) -> bool:
    """Whether a parameter of the head is trained: class vectors, a projection or a scale."""
    head = recipe.head()
    free = head.get("feat") in TRAINED_FEATURES or head.get("scale") == "learnable"
    return not is_frozen(recipe) or free


def two_headed(recipe: Recipe) -> str:
    """The piece whose head has a second classifier of the client's own; empty if there is none."""
    kind = recipe.head().get("kind", "single")
    return recipe.owner("kind") if kind in HEAD_KINDS and HEAD_KINDS[kind].two_classifiers else ""


def refuse_lack(recipe: Recipe, piece: Piece, lack: Lack) -> NoReturn:
    """Raise for a piece that needs the trait that the recipe lacks."""
    refuse(recipe, piece.name, lack.owner, LACKING[lack.trait].format(piece.name, lack.owner))


def _frozen_and_share(recipe: Recipe, piece: Piece) -> None:
    """A frozen head without trained parameters can neither be personal nor be the only shared part."""
    if piece.slot != "share" or trains_head(recipe):
        return
    holder = recipe.owner("weights")
    if not recipe.share("head.weight"):
        why = f"{piece.name} makes the classifier personal and {holder} freezes it for all"
        refuse(recipe, piece.name, holder, why)
    if not recipe.share("body.weight"):
        refuse(recipe, piece.name, holder, f"{piece.name} shares the classifier alone and {holder} freezes it")


def _two_classifiers(recipe: Recipe, piece: Piece) -> None:
    two = two_headed(recipe)
    if two and piece.slot == "head" and "default" not in piece.provides():
        why = f"{two} has two linear classifiers of its own and {piece.name} changes the usual one"
        refuse(recipe, piece.name, two, why)


def _settings(setup: Setup) -> None:
    """A piece and a setting of the task that contradict each other."""
    recipe = setup.recipe
    for p in recipe.pieces:
        if setup.persist_momentum and "fresh momentum" in p.requires():
            raise RecipeError(
                f"persist_momentum=true: {p.name} divides by the steps of a round whose momentum starts at zero; "
                f"use persist_momentum=false, or momentum=0"
            )
    if setup.personal_from == "calibrated":
        calib = recipe.decider("calibrate")
        if calib.slot != "calib":
            raise RecipeError(
                "personal_from=calibrated: the recipe does not calibrate; add a calibration, or use global"
            )
        other = is_frozen(recipe) or recipe.head().get("kind", "single") != "single"
        if other or "same classifier" not in calib.provides():
            raise RecipeError(
                f"personal_from=calibrated: {calib.name} gives the model another kind of classifier here, but clients "
                f"train the recipe's own; use personal_from=global"
            )


def refuse(recipe: Recipe, one: str, two: str, why: str, fix: str = "") -> NoReturn:
    """Raise for two pieces that contradict each other."""
    raise RecipeError(f"{recipe.spelled}: {why}; {fix or f'drop {one} or {two}'}")
