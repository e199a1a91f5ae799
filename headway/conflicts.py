"""Which pieces cannot work together, and why: the rules that no piece can know alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.errors import RecipeError

if TYPE_CHECKING:
    from headway.piece import Piece
    from headway.recipes import Recipe
    from headway.settings import Settings

UNIT_FEATURES = ("l2", "proj+l2")
TWO_HEADED = ("twin", "dual", "hyper")


def check(recipe: Recipe) -> None:
    """Raise for two pieces that contradict each other; the message names both and says what to do."""
    head = recipe.head()
    frozen = head.get("weights", "trainable") != "trainable"
    holder = recipe.owner("weights")
    for p in recipe.pieces:
        if frozen and p.moves_classifier:
            refuse(recipe, p.name, holder, f"{p.name} moves the classifier and {holder} freezes it")
        if frozen and p.slot == "share" and not trains_head(recipe):
            if not recipe.share("head.weight"):
                why = f"{p.name} makes the classifier personal and {holder} freezes it for all"
                refuse(recipe, p.name, holder, why)
            if not recipe.share("body.weight"):
                refuse(recipe, p.name, holder, f"{p.name} shares the classifier alone and {holder} freezes it")
        if frozen and p.name == "alternate" and not trains_head(recipe):
            refuse(recipe, p.name, holder, f"{p.name} trains the classifier in its turn and {holder} freezes it")
        two = recipe.owner("kind") if head.get("kind") in TWO_HEADED else ""
        if two and p.slot == "head" and p.name != "linear":
            refuse(recipe, p.name, two, f"{two} has two linear classifiers of its own and {p.name} shapes another")
        if p.needs_server and (alone := recipe.piece("local")):
            refuse(recipe, p.name, alone.name, f"{p.name} needs the server and under local clients never meet")
        if p.moves_classifier and p.needs_server and (two or not recipe.share("head.weight")):
            other = two or recipe.decider("share").name
            refuse(recipe, p.name, other, f"{p.name} acts on the one classifier all share and {other} has none")
        if p.needs_global and not recipe.share("body.weight") and not recipe.trains_everyone:
            other = recipe.decider("share").name
            refuse(recipe, p.name, other, f"{p.name} compares with the global body and under {other} there is none")
    if frozen and head.get("wnorm") == "unit" and recipe.piece("clsnorm"):
        refuse(recipe, "clsnorm", holder, f"clsnorm normalises a trained classifier and {holder} freezes it")
    _per_fedavg(recipe)
    _memory(recipe, head.get("feat", "id"))
    _calibration(recipe)


def bounded_logits(recipe: Recipe) -> list[str]:
    """Advice for a sum of pieces whose logits cannot leave [-scale, scale]; sphere is published so."""
    head = recipe.head()
    scale = head.get("scale", 1.0)
    if head.get("feat") != "l2" or head.get("wnorm") != "unit" or scale == "learnable" or float(scale) > 1:
        return []
    one, two = recipe.owner("feat"), recipe.owner("wnorm")
    said = (
        f"{one} and {two} together keep the logits within {float(scale):g} and underfit; use etf(scale=...) or cosine"
    )
    return [said] if one != two else []


def trains_head(recipe: Recipe) -> bool:
    """Whether a head with frozen class vectors still has something to train: a projection, a temperature."""
    head = recipe.head()
    return head.get("feat") == "proj+l2" or head.get("scale") == "learnable"


def _per_fedavg(recipe: Recipe) -> None:
    """The meta step is not the gradient these pieces correct."""
    meta = recipe.piece("perfedavg")
    for p in recipe.pieces if meta else ():
        if p.name in ("gmv", "moon"):
            refuse(recipe, p.name, "perfedavg", f"{p.name} is not defined under perfedavg's meta step")


def _memory(recipe: Recipe, feat: str) -> None:
    """A memory vector in raw feature space, added before features are normalised, is a choice to be made openly."""
    gmv = recipe.piece("gmv")
    if gmv is None or getattr(gmv, "space", "") == "raw":
        return
    if feat in UNIT_FEATURES:
        owner = recipe.owner("feat")
        refuse(recipe, "gmv", owner, f"gmv adds to raw features and {owner} normalises them", "write gmv(space=raw)")
    for p in recipe.pieces:
        if p.slot == "share" and p.name != "all":
            refuse(recipe, "gmv", p.name, f"gmv needs one feature space and under {p.name} parts are personal",
                   "write gmv(space=raw)")  # fmt: skip


def _calibration(recipe: Recipe) -> None:
    """A calibration retrains the global classifier: there must be one, and it must be free to move."""
    for p in recipe.pieces:
        if p.slot != "calib":
            continue
        if recipe.head().get("weights", "trainable") != "trainable" and not getattr(p, "replace_head", True):
            holder = recipe.owner("weights")
            refuse(recipe, p.name, holder, f"{p.name} retrains the classifier and {holder} freezes it",
                   f"write {p.name}(replace_head=true) to put a trained one in its place")  # fmt: skip
        for other in recipe.pieces:
            if other.slot in ("share", "base") and _hides_head(other) and not _averages(p, other):
                refuse(recipe, p.name, other.name, f"{p.name} calibrates the global classifier and {other.name} has "
                       f"none", f"drop {p.name}, or write {p.name}(global_head=mean_of_personal)")  # fmt: skip


def check_settings(recipe: Recipe, s: Settings) -> None:
    """Raise for a piece and a setting of the task that contradict each other."""
    for p in recipe.pieces:
        if s.persist_momentum and p.counts_steps:
            raise RecipeError(
                f"persist_momentum=true: {p.name} divides by the steps of a round whose momentum starts at zero; "
                f"use persist_momentum=false, or momentum=0"
            )
    if s.personal_from == "calibrated":
        calib = recipe.decider("calibrate")
        if calib.slot != "calib":
            raise RecipeError("personal_from=calibrated: the recipe does not calibrate; add ccvr, or use global")
        head = recipe.head()
        other = head.get("weights", "trainable") != "trainable" or head.get("kind", "single") != "single"
        if other or calib.name == "ffc" or getattr(calib, "transform", "none") != "none":
            raise RecipeError(
                f"personal_from=calibrated: {calib.name} gives the model another kind of classifier here, and clients "
                f"train the recipe's own; use personal_from=global"
            )


def _averages(p: Piece, other: Piece) -> bool:
    return getattr(p, "global_head", "server") == "mean_of_personal" and other.slot == "share"


def _hides_head(p: Piece) -> bool:
    return not p.share("head.weight") or not p.share("body.weight")


def refuse(recipe: Recipe, one: str, two: str, why: str, fix: str = "") -> None:
    raise RecipeError(f"{recipe.names}: {why}; {fix or f'drop {one} or {two}'}")
