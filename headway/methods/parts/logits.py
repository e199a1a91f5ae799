"""Advice on heads whose logits are bounded."""

from __future__ import annotations

from headway.core import Recipe


def bounded_logits(recipe: Recipe) -> list[str]:
    """Unit features on unit class vectors give logits within [-scale, scale]; a single piece may be published so."""
    head = recipe.head()
    scale = head.get("scale", 1.0)
    if head.get("feat") != "l2" or head.get("wnorm") != "unit" or scale == "learnable" or float(scale) > 1:
        return []
    one, two = recipe.owner("feat"), recipe.owner("wnorm")
    said = (
        f"{one} and {two} together keep the logits within {float(scale):g} and underfit; use etf(scale=...) or cosine"
    )
    return [said] if one != two else []
