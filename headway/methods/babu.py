"""FedBABU: Towards Enhanced Representation for Federated Image Classification (Oh et al., 2022)."""

from __future__ import annotations

from headway.core import Note, Piece


class Babu(Piece):
    """The classifier stays at its common random start during the federation; only the body is trained."""

    name, slot, paper = "babu", "head", "oh2022fedbabu"

    def head(self) -> Note:
        return {"weights": "frozen_random"}
