"""Which published rows speak about a piece, and what each gains over FedAvg in the same setting of the same table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import TypeVar

from headway.analysis.published import PAPERS, Published, rows
from headway.core.piece import Piece
from headway.methods import recipe

MOST = 8  # rows on a card
OWN = 6  # at most so many of them from the piece's own paper while other papers have something to say
METRICS = ("global_acc", "global_acc_last50", "general_acc", "personal_acc", "pooled_local_acc")
Key = tuple[object, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """A published row; where a table tries several values of a setting, the best of them."""

    row: Published
    base: Published | None  # FedAvg in the same setting of the same table, where it has that
    tried: int  # how many values the table tries

    @property
    def gain(self) -> float | None:
        """Points over FedAvg."""
        if self.base is None or self.base.mean is None or self.row.mean is None:
            return None
        return self.row.mean - self.base.mean


def findings(piece: type[Piece]) -> list[Finding]:
    """At most MOST rows about a piece: its own paper first, then the others in turn."""
    about = distinct(finding(cell, piece.name) for cell in cells().values() if speaks_of(cell[0], piece.name))
    by_paper: dict[str, list[Finding]] = {}
    for f in about:
        by_paper.setdefault(f.row.paper, []).append(f)
    own = [f for paper, found in by_paper.items() if PAPERS[paper] == piece.paper for f in varied(found)]
    others = in_turn(varied(found) for paper, found in by_paper.items() if PAPERS[paper] != piece.paper)
    chosen = own[: max(OWN, MOST - len(others))]
    chosen += others[: MOST - len(chosen)]
    place = {f.row.paper + f.row.table: i for i, f in reversed(list(enumerate(about)))}
    return sorted(chosen, key=lambda f: (PAPERS[f.row.paper] != piece.paper, place[f.row.paper + f.row.table]))


def varied(found: Sequence[Finding]) -> list[Finding]:
    """One of every table, data set, model and metric, then a second of each; main tables and short recipes first."""
    simple = sorted(found, key=lambda f: (not f.row.table.isdigit(), len(re.split(r"[+-]", f.row.method))))
    groups: dict[Key, list[Finding]] = {}
    for f in simple:
        groups.setdefault((f.row.table, f.row.dataset, f.row.model, f.row.metric), []).append(f)
    return in_turn(groups.values())


def in_turn(lists: Iterable[Sequence[T]]) -> list[T]:
    return [item for turn in zip_longest(*lists) for item in turn if item is not None]


def distinct(found: Iterable[Finding]) -> list[Finding]:
    """Papers print a number in several tables: keep it once, where FedAvg stands beside it if it does anywhere."""
    kept: dict[Key, Finding] = {}
    for f in found:
        r = f.row
        key = (*setting(r)[:1], *setting(r)[2:], parts(r.method), r.mean)
        if key not in kept or (kept[key].gain is None and f.gain is not None):
            kept[key] = f
    return list(kept.values())


def speaks_of(row: Published, name: str) -> bool:
    """FedAvg is in every recipe: only plain FedAvg speaks of it."""
    pieces = parts(row.method)
    return pieces == ("fedavg",) if name == "fedavg" else name in pieces


@lru_cache
def parts(method: str) -> tuple[str, ...]:
    return tuple(p.name for p in recipe(method).pieces)


def setting(row: Published) -> Key:
    """All that two rows must share to be compared, but for the method and what it was tuned with."""
    return (row.paper, row.table, row.dataset, row.model, row.partition, row.clients, row.sampling, row.epochs,
            row.rounds, row.metric)  # fmt: skip


@lru_cache
def cells() -> dict[Key, list[Published]]:
    """(setting, method) -> the rows that differ in `extra` alone; cells that look misprinted are left out."""
    found: dict[Key, list[Published]] = {}
    for r in rows():
        sound = (r.mean is not None or r.failed) and r.read_as is None
        if r.named and r.metric in METRICS and sound:
            found.setdefault((*setting(r), r.method), []).append(r)
    return found


def best(cell: Sequence[Published]) -> Published:
    return max(cell, key=lambda r: -1.0 if r.mean is None else r.mean)


def finding(cell: Sequence[Published], name: str) -> Finding:
    """The best of a cell against FedAvg's best; a finetuned recipe against finetuned FedAvg."""
    row = best(cell)
    finetuned = "finetune" in parts(row.method) and name != "finetune"
    base = cells().get((*setting(row), "fedavg+ft" if finetuned else "fedavg"))
    return Finding(row, None if base is None or base is cell else best(base), len(cell))
