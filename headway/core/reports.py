"""The reports of a round as one sequence; those of clients that trained together are made when they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, overload

from headway.base.lazy import Tensor
from headway.base.tree import Tree, mean, mean_of_vectors
from headway.core.state import Report

if TYPE_CHECKING:
    from headway.core.piece import Piece

LONG_ROW = 1 << 14  # numbers; shorter rows are added as a matrix, as a call for each would take longer than its work
Place = tuple[str, int, tuple[int, ...]]  # a parameter's name, its first column, its shape


@dataclass(frozen=True)
class Rows:
    """Parameters of M clients, one row each, [M, P], and where each parameter stands in a row."""

    matrix: Tensor
    places: Sequence[Place]

    def cut(self, vector: Tensor) -> dict[str, Tensor]:
        """The parameters in a row, as views of it."""
        return {name: vector[at : at + prod(shape)].view(shape) for name, at, shape in self.places}


@dataclass(frozen=True)
class Bundle:
    """The reports of clients that trained together and send nothing but their parameters."""

    clients: Sequence[int]
    n: Sequence[int]
    steps: Sequence[int]
    loss: Sequence[float]
    rows: Sequence[Rows]  # parameters whose steps have different rates are apart

    def __len__(self) -> int:
        return len(self.clients)

    def report(self, i: int) -> Report:
        w = Tree({name: v for rows in self.rows for name, v in rows.cut(rows.matrix[i]).items()})
        return Report(self.clients[i], self.n[i], self.steps[i], w, Tree(), {}, self.loss[i])

    def nbytes(self) -> int:
        return sum(rows.matrix.numel() * rows.matrix.element_size() for rows in self.rows)

    @classmethod
    def received(cls, fields: dict[str, Any]) -> Bundle:
        """A bundle from the values of its fields, as another process sent them."""
        rows = [
            Rows(r["matrix"], [(name, at, tuple(shape)) for name, at, shape in r["places"]]) for r in fields["rows"]
        ]
        return cls(**fields | {"rows": rows})


Part = Report | Bundle


@dataclass(frozen=True)
class Reports(Sequence[Report]):
    """Reports in the order of the clients' numbers, so that no sum depends on the order of arrival."""

    parts: Sequence[Part]
    order: Sequence[tuple[int, int]]  # (part, report in it) of each client
    piece: Piece | None = None  # whose messages the reports are narrowed to

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Reports:
        listed = sorted(parts, key=lambda part: min(clients_of(part)))
        found = sorted((k, i, j) for i, part in enumerate(listed) for j, k in enumerate(clients_of(part)))
        return cls(listed, [(i, j) for _, i, j in found])

    def of_piece(self, piece: Piece) -> Reports:
        """The same reports with `sent` narrowed to one piece's message."""
        return Reports(self.parts, self.order, piece)

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, i: int) -> Report: ...
    @overload
    def __getitem__(self, i: slice) -> list[Report]: ...
    def __getitem__(self, i: int | slice) -> Report | list[Report]:
        return [self._made(*at) for at in self.order[i]] if isinstance(i, slice) else self._made(*self.order[i])

    def __iter__(self) -> Iterator[Report]:
        return (self._made(*at) for at in self.order)

    def _made(self, i: int, j: int) -> Report:
        part = self.parts[i]
        report = part.report(j) if isinstance(part, Bundle) else part
        return report if self.piece is None else report.of(self.piece)

    def numbers(self, name: str) -> list[Any]:
        """The field `n`, `steps` or `loss` of every report."""
        each = [getattr(p, name) if isinstance(p, Bundle) else (getattr(p, name),) for p in self.parts]
        return [each[i][j] for i, j in self.order]

    def nbytes(self) -> int:
        """The size of all reports."""
        return sum(part.nbytes() for part in self.parts)

    def mean(self, p: Sequence[float]) -> Tree:
        """sum_k p_k w_k; clients that trained together are added one after another, bundle by bundle."""
        bundles = [part for part in self.parts if isinstance(part, Bundle)]
        if len(bundles) < len(self.parts):
            return mean([report.w for report in self], p)
        weights = [[0.0] * len(bundle) for bundle in bundles]
        for q, (i, j) in zip(p, self.order, strict=True):
            weights[i][j] = q
        total = Tree()
        for group, rows in enumerate(bundles[0].rows):
            mean_row = mean_of_rows([bundle.rows[group].matrix for bundle in bundles], weights)
            total |= {name: v.clone() for name, v in rows.cut(mean_row).items()}
        return total

    def mean_stats(self, p: Sequence[float]) -> Tree:
        """The mean of the running statistics; networks of clients that train together have none."""
        stats = [part.stats for part in self.parts if isinstance(part, Report)]
        if len(stats) < len(self.order):
            return Tree()
        return mean([stats[i] for i, _ in self.order], p)


def mean_of_rows(matrices: Sequence[Tensor], weights: Sequence[Sequence[float]]) -> Tensor:
    """The weighted sum of all rows; the order of the additions follows from the sizes alone."""
    if matrices[0].shape[1] >= LONG_ROW:
        vectors = [v for matrix in matrices for v in matrix.unbind(0)]
        return mean_of_vectors(vectors, [q for mine in weights for q in mine])
    sums = [(m * m.new_tensor(mine)[:, None]).sum(0) for m, mine in zip(matrices, weights, strict=True)]
    total = sums[0]
    for other in sums[1:]:
        total = total + other
    return total


def clients_of(part: Part) -> Sequence[int]:
    return part.clients if isinstance(part, Bundle) else (part.client,)
