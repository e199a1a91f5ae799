"""Local training: every client for itself, no communication; the yardstick of personalisation."""

from headway.piece import Piece


class LocalOnly(Piece):
    """One common start, then nobody sends anything. All clients train every round, so that budgets are equal."""

    name, slot, paper, everyone = "local", "base", "mcmahan2017fedavg", True

    def share(self, name: str) -> bool:
        return False
