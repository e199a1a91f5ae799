"""Every diagnostic by name, in the order they are read; each module is imported when its diagnostic is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from headway.base.errors import ConfigError, nearest

if TYPE_CHECKING:
    from headway.analysis.diagnostics.finding import Finding
    from headway.analysis.diagnostics.subject import Subject

DIAGNOSTICS = {
    "labels": "labels:labels",
    "traces": "curves:traces",
    "per_class": "confusion:per_class",
    "four_factors": "factors:four_factors",
    "norms": "norms:norms",
    "classifier_norms": "norms:classifier_norms",
    "collapse": "collapse:collapse",
    "consistency": "prototypes:consistency",
    "class_vectors": "tsne:class_vectors",
    "drift": "drift:drift",
    "cka": "cka:cka",
    "separability": "separability:separability",
    "tsne": "tsne:tsne",
    "inversion": "inversion:inversion",
}

WITHOUT_MODEL = ("labels", "traces")  # of a run that failed too: they look at data and at tables


def diagnostic(name: str) -> Callable[[Subject], Finding]:
    module, _, function = DIAGNOSTICS[name].partition(":")
    found: Callable[[Subject], Finding] = getattr(import_module(f"headway.analysis.diagnostics.{module}"), function)
    return found


def chosen(text: str | None) -> list[str]:
    """The names in `norms,collapse`, in the order of the catalogue; all of them when nothing is said."""
    if text is None:
        return list(DIAGNOSTICS)
    asked = [part.strip() for part in text.split(",")]
    if not all(asked):
        raise ConfigError(f"only={text!r}: a name is missing; write names with commas, such as norms,collapse")
    for name in asked:
        if name not in DIAGNOSTICS:
            raise ConfigError(f"only={name}: there is no such diagnostic; {nearest(name, DIAGNOSTICS)}")
    return [name for name in DIAGNOSTICS if name in asked]
