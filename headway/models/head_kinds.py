"""Registries of classifiers and of class vectors, by name. A method registers the ones it defines, with their builders.

This module does not import torch; a builder is called when a model is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

Make = TypeVar("Make", bound=Callable[..., Any])
Tensors = dict[str, bool]  # name -> whether local training changes it; the head's own before those of its parts


@dataclass(frozen=True)
class HeadKind:
    make: Callable[..., nn.Module]  # (dim, classes, rng, **choices) -> the head
    two_classifiers: bool  # one that all clients share, and one of the client's own
    tensors: Callable[..., Tensors] | None = None  # (**choices) -> the head's tensors, if known without building it


@dataclass(frozen=True)
class ClassVectors:
    make: Callable[..., Tensor]  # (dim, classes, rng) -> the first class vectors, [C, d]
    moving: bool  # whether they change from round to round


HEAD_KINDS: dict[str, HeadKind] = {}
CLASS_VECTORS: dict[str, ClassVectors] = {}


def head_kind(
    name: str, *, two_classifiers: bool = False, tensors: Callable[..., Tensors] | None = None
) -> Callable[[Make], Make]:
    """Decorator: register a builder of this kind of head, which a piece chooses by `head()` -> {"kind": name}.

    `tensors` returns the head's tensors without building it, so that `headway explain` needs no torch.
    """

    def register(make: Make) -> Make:
        HEAD_KINDS[name] = HeadKind(make, two_classifiers, tensors)
        return make

    return register


def linear_tensors(
    *, weights: str = "trainable", feat: str = "id", scale: float | str = 1.0, bias: bool = True, **other: Any
) -> Tensors:
    """The tensors of `heads.Head` with these choices."""
    trained = weights == "trainable"
    own = {"weight": trained} | ({"bias": trained} if bias else {}) | {"scale": scale == "learnable"}
    return own | ({"proj.weight": True, "proj.bias": True} if feat == "proj+l2" else {})


def part_tensors(part: str, **choices: Any) -> Tensors:
    """The tensors of a `heads.Head` that is a part of a larger head."""
    return {f"{part}.{name}": moves for name, moves in linear_tensors(**choices).items()}


def head_tensors(spec: dict[str, Any]) -> Tensors:
    """The tensors of the head that `spec` describes; LookupError if its kind has no `tensors`."""
    choices = {key: value for key, value in spec.items() if key not in ("kind", "power")}
    kind = spec.get("kind", "single")
    tensors = linear_tensors if kind == "single" else HEAD_KINDS[kind].tensors
    if tensors is None:
        raise LookupError(f"head kind {kind}: its tensors are only known after it is built")
    return tensors(**choices)


def class_vectors(name: str, *, moving: bool = False) -> Callable[[Make], Make]:
    """Decorator: register a function that makes first class vectors, chosen by `head()` -> {"weights": name}.

    `trainable` class vectors are parameters; all others are buffers, which are not trained.
    """

    def register(make: Make) -> Make:
        CLASS_VECTORS[name] = ClassVectors(make, moving)
        return make

    return register
