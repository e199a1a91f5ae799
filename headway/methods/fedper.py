"""FedPer: Federated Learning with Personalization Layers (Arivazhagan et al., 2019)."""

from __future__ import annotations

from headway.core import Piece, in_head


class FedPer(Piece):
    """Body and head train together; the head never leaves its client."""

    name, slot, paper = "fedper", "share", "arivazhagan2019fedper"

    def share(self, name: str) -> bool:
        return not in_head(name)
