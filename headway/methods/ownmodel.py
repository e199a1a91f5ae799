"""No model averaging: every parameter stays on its client, and only class prototypes are sent (FedProto)."""

from __future__ import annotations

from headway.core import Piece


class OwnModel(Piece):
    """With protoalign this is FedProto: prototypes are all that clients share."""

    name, slot, paper = "ownmodel", "share", "tan2022fedproto"

    def share(self, name: str) -> bool:
        return False
