"""A piece as a user might write it, whose hooks need real tensors."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Local, Note, Piece, Tree


@dataclass(frozen=True)
class Loud(Piece):
    """Sends what depends on numbers: only a real round can tell."""

    name, slot = "loud", "reg"

    def init_server(self, w: Tree, net: object) -> Note:
        return {"calls": 0}

    def report(self, w: Tree, local: Local) -> tuple[Note, Note]:
        many = local.counts.sum() > 3
        return {"most" if many else "few": local.counts.max()}, {"seen": int(local.counts.sum())}

    def absorb(self, arrived: Arrived) -> Note:
        return {"calls": arrived.kept["calls"] + 1}

    def broadcast(self, kept: Note) -> Note:
        return {"again": kept["calls"]} if kept["calls"] else {}
