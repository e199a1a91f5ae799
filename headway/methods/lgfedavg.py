"""LG-FedAvg: Think Locally, Act Globally (Liang et al., 2020)."""

from __future__ import annotations

from headway.core import Piece, in_head


class LGFedAvg(Piece):
    """The opposite of FedPer: bodies are personal, the classifier is shared. There is no global model."""

    name, slot, paper = "lgfedavg", "share", "liang2020lgfedavg"

    def share(self, name: str) -> bool:
        return in_head(name)
