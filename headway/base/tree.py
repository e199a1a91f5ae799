"""Trees: named tensors with the arithmetic of one vector; and random streams by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headway.base.lazy import Tensor, torch
from headway.base.machine import cores

MOST_THREADS = 4  # for adding vectors; with more, memory bandwidth is the limit
LONG = 1 << 17  # numbers per thread, below which a thread does not pay off


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
        """Copies of the tensors, detached from the autograd graph."""
        return Tree({k: v.detach().clone() for k, v in self.items()})

    def map(self, f: Callable[[Tensor], Tensor]) -> Tree:
        return Tree({k: f(v) for k, v in self.items()})

    def sq_norm(self) -> Tensor:
        """||w||^2, a scalar."""
        return sum((v.square().sum() for v in self.values()), torch.zeros(()))

    def dot(self, other: Tree) -> Tensor:
        """<w, v>, a scalar."""
        return sum((v.sum() for v in (self * other).values()), torch.zeros(()))

    def not_finite(self) -> set[str]:
        """The names of tensors that contain an infinite value or NaN."""
        return {name for name, v in self.items() if not bool(v.isfinite().all())}

    def nbytes(self) -> int:
        return sum(v.numel() * v.element_size() for v in self.values())

    def _pairwise(self, op: Callable[..., Tensor], other: Any) -> Tree:
        if not isinstance(other, Tree):
            return Tree({k: op(v, other) for k, v in self.items()})
        if odd := sorted(self.keys() ^ other.keys()):
            raise ValueError(f"trees differ in {odd[:3]} ({len(odd)} names); both sides need the same names")
        return Tree({k: op(v, other[k]) for k, v in self.items()})


@dataclass(frozen=True)
class Stretch:
    """One vector over the memory of a tree whose tensors are stored one after another, gaps included."""

    vector: Tensor
    places: list[tuple[str, int, torch.Size]]  # name, start, shape

    def cut(self, vector: Tensor) -> Tree:
        """The tree of another vector with the same places; its tensors are copies."""
        return Tree({name: vector[at : at + shape.numel()].view(shape).clone() for name, at, shape in self.places})


def stretch(tree: Tree) -> Stretch | None:
    """The tree as one vector, if its tensors are in one storage, in order and of one dtype; else None."""
    tensors = list(tree.values())
    if len(tensors) < 2:
        return None
    first, last = tensors[0], tensors[-1]
    if not first.is_floating_point():  # a mean of integers has another dtype
        return None
    if first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():  # tensors between them are in it too
        return None
    start, end, size = first.data_ptr(), 0, first.element_size()
    places: list[tuple[str, int, torch.Size]] = []
    for name, v in tree.items():
        at = (v.data_ptr() - start) // size
        if at < end or v.dtype != first.dtype or v.requires_grad or not v.is_contiguous():
            return None
        places.append((name, at, v.shape))
        end = at + v.numel()
    return Stretch(first.as_strided((end,), (1,), first.storage_offset()), places)


def mean(trees: Sequence[Tree], p: Sequence[float]) -> Tree:
    """sum_k p_k * tree_k, added in the order given.

    One buffer per tensor holds the terms p_k * tree_k. Multiplication and addition are two steps: a fused operation
    rounds differently at the ends of vectors, and the sum must not depend on the memory layout. Trees that are each
    stored as one vector, as models received from a worker are, are added as vectors, in several threads: this is faster
    and gives the same numbers.
    """
    first, *others = trees
    found = [stretch(tree) for tree in trees]
    if found[0] is not None and all(f is not None and f.places == found[0].places for f in found):
        return found[0].cut(mean_of_vectors([f.vector for f in found if f is not None], p))
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


def mean_of_vectors(vectors: Sequence[Tensor], p: Sequence[float]) -> Tensor:
    """The same for vectors, in threads that end with this call: a process with threads cannot fork workers safely."""
    total = torch.empty_like(vectors[0])
    count = min(MOST_THREADS, cores(), max(1, total.numel() // LONG))
    parts = [total] if total.is_cuda else list(total.tensor_split(count))
    starts = [part.storage_offset() for part in parts]

    def add(part: Tensor, start: int) -> None:
        mine = [v[start : start + part.numel()] for v in vectors]
        torch.mul(mine[0], p[0], out=part)
        term = torch.empty_like(part)
        for q, v in zip(p[1:], mine[1:], strict=True):
            part.add_(torch.mul(v, q, out=term))

    if len(parts) == 1:
        add(parts[0], 0)
    else:
        with ThreadPoolExecutor(len(parts)) as threads:
            list(threads.map(add, parts, starts))
    return total


def seed_of(*name: object) -> int:
    """The seed of the stream of this name, for libraries that take a number instead of a generator."""
    return int.from_bytes(hashlib.blake2b(repr(name).encode(), digest_size=7).digest(), "big")


def stream(*name: object) -> torch.Generator:
    """A random generator that is seeded by its name: the same name always gives the same numbers."""
    return torch.Generator().manual_seed(seed_of(*name))
