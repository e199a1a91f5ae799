"""Trees: named tensors that behave like one vector; and named random streams."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Tree(dict[str, Tensor]):
    """Named tensors that add, subtract and scale like one vector: w - eta * g."""

    def __add__(self, other: Tree | float | Tensor) -> Tree:
        return self._pairwise(torch.add, other)

    def __sub__(self, other: Tree | float | Tensor) -> Tree:
        return self._pairwise(torch.sub, other)

    def __mul__(self, scale: Tree | float | Tensor) -> Tree:
        return self._pairwise(torch.mul, scale)

    def __truediv__(self, scale: Tree | float | Tensor) -> Tree:
        return self._pairwise(torch.div, scale)

    def __rmul__(self, scale: float | Tensor) -> Tree:
        return self * scale

    def __radd__(self, start: object) -> Tree:
        if start == 0:  # sum() starts from 0
            return self
        return NotImplemented

    def __or__(self, other: dict[str, Tensor]) -> Tree:  # type: ignore[override]
        return Tree({**self, **other})

    def only(self, keep: Callable[[str], bool]) -> Tree:
        """The tensors whose name satisfies `keep`."""
        return Tree({k: v for k, v in self.items() if keep(k)})

    def zeros(self) -> Tree:
        return Tree({k: torch.zeros_like(v) for k, v in self.items()})

    def copy(self) -> Tree:
        """The same numbers in memory of their own, cut off from any graph."""
        return Tree({k: v.detach().clone() for k, v in self.items()})

    def map(self, f: Callable[[Tensor], Tensor]) -> Tree:
        return Tree({k: f(v) for k, v in self.items()})

    def sq_norm(self) -> Tensor:
        """||w||^2, a scalar."""
        return sum((v.square().sum() for v in self.values()), torch.zeros(()))

    def dot(self, other: Tree) -> Tensor:
        """<w, v>, a scalar."""
        return sum((v.sum() for v in (self * other).values()), torch.zeros(()))

    def nbytes(self) -> int:
        return sum(v.numel() * v.element_size() for v in self.values())

    def _pairwise(self, op: Callable[..., Tensor], other: Any) -> Tree:
        if not isinstance(other, Tree):
            return Tree({k: op(v, other) for k, v in self.items()})
        if odd := sorted(self.keys() ^ other.keys()):
            raise ValueError(f"trees differ in {odd[:3]} ({len(odd)} names); both sides need the same names")
        return Tree({k: op(v, other[k]) for k, v in self.items()})


def mean(trees: Sequence[Tree], p: Sequence[float]) -> Tree:
    """sum_k p_k * tree_k, added in the order given.

    The terms pass through one piece of memory each. Multiplying and adding stay two steps: fused they would round
    otherwise at the ends of vectors, and sums must not depend on how memory is laid out.
    """
    first, *others = trees
    total, term = p[0] * first, first.zeros()
    for q, tree in zip(p[1:], others, strict=True):
        if tree.keys() != total.keys():
            raise ValueError("trees differ in their names; a mean needs the same names everywhere")
        for name, v in tree.items():
            if v.requires_grad or v.dtype != total[name].dtype:
                total[name] = total[name] + q * v
            else:
                total[name].add_(torch.mul(v, q, out=term[name]))
    return total


def seed_of(*name: object) -> int:
    """The seed behind a stream's name, for libraries that take a number instead of a generator."""
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=7).digest(), "big")


def stream(*name: object) -> torch.Generator:
    """Random numbers named by their purpose: the same name gives the same numbers, whoever asks, whenever."""
    return torch.Generator().manual_seed(seed_of(*name))
