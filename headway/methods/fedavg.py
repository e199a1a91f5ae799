"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., 2017)."""

from __future__ import annotations

from headway.core import Piece


class FedAvg(Piece):
    """Algorithm 1 is the round itself (rounds.py), so nothing is added here."""

    name, slot, paper = "fedavg", "base", "mcmahan2017fedavg"

    def provides(self) -> set[str]:
        return {"default"}
