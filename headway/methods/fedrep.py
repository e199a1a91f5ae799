"""FedRep: Exploiting Shared Representations for Personalized Federated Learning (Collins et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Phase, Piece, in_body, in_head, setting


@dataclass(frozen=True)
class FedRep(Piece):
    """Personal heads; each round trains the head on the received body, then the body under that head."""

    name, slot, paper = "fedrep", "share", "collins2021fedrep"
    head_epochs: int | None = setting(None, "E_h; the task's epochs when not given", ge=1, also="e_h")
    body_epochs: int | None = setting(None, "E_b; the task's epochs when not given", ge=1, also="e_b")

    def share(self, name: str) -> bool:  # heads stay on their clients
        return not in_head(name)

    def phases(self, epochs: int) -> list[Phase]:  # Algorithm 1: the head, then the representation
        return [
            Phase(self.head_epochs or epochs, trains=in_head, stage="head"),
            Phase(self.body_epochs or epochs, trains=in_body, stage="body"),
        ]
