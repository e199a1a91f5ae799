"""Local training: every client for itself, no communication; the baseline of personalisation."""

from __future__ import annotations

from headway.core import Piece


class LocalOnly(Piece):
    """One common start, then no client sends anything. All clients train every round, so that budgets are equal."""

    name, slot, paper = "local", "base", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"isolated clients", "all clients train"}

    def share(self, name: str) -> bool:
        return False
