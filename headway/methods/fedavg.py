"""FedAvg: Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan et al., 2017)."""

from headway.piece import Piece


class FedAvg(Piece):
    """Algorithm 1 is the round itself (rounds.py), so nothing is added here."""

    name, slot, paper = "fedavg", "base", "mcmahan2017fedavg"
    neutral = {}  # noqa: RUF012
