"""Arrived: a round as a hook sees it on the server, when all reports have arrived; the counterpart of `Local`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headway.base.tree import Tree, mean
from headway.core.reports import Reports
from headway.core.state import Report

if TYPE_CHECKING:
    from headway.core.piece import Piece


@dataclass(frozen=True)
class Arrived:
    """The round as the server sees it. In a hook, `kept` and each report's `sent` are those of the hook's piece."""

    w: Tree  # shared parameters that the clients received, w^t
    reports: Reports | Sequence[Report]  # in the order of the clients' numbers, k in S_t
    p: Sequence[float]  # weight of each report; they sum to one
    num_clients: int  # K, including clients that did not train in this round
    round: int  # t
    lr: float  # eta_t
    kept: dict[str, Any]  # the piece's server note; in `server_step` the one that its `absorb` returned
    w_new: Tree = field(default_factory=Tree)  # the result of `aggregate`; empty before

    @property
    def uniform(self) -> list[float]:
        """1/m for each of the m reports."""
        return [1 / len(self.reports)] * len(self.reports)

    def mean(self, p: Sequence[float] | None = None) -> Tree:
        """sum_k p_k w_k."""
        p = self.p if p is None else p
        return self.reports.mean(p) if isinstance(self.reports, Reports) else mean([r.w for r in self.reports], p)

    def of(self, piece: Piece) -> Arrived:
        """The same round as one piece sees it."""
        reports = self.reports
        mine = reports.of_piece(piece) if isinstance(reports, Reports) else [r.of(piece) for r in reports]
        return replace(self, kept=self.kept.get(piece.name, {}), reports=mine)
