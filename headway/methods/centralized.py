"""Centralised training: all data in one place, the bound that federation is measured against."""

from __future__ import annotations

from headway.core import Piece


class Centralized(Piece):
    """One client holds everything; nothing else changes, so schedules stay comparable."""

    name, slot, paper = "centralized", "base", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"pooled data"}
