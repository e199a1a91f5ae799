"""Centralised training: all data in one place, the bound that federation is measured against."""

from headway.piece import Piece


class Centralized(Piece):
    """One client holds everything; nothing else changes, so schedules stay comparable."""

    name, slot, paper, pools = "centralized", "base", "mcmahan2017fedavg", True
