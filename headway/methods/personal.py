"""Small pieces that say how a global model becomes personal: one more training, or head and body in turn."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Phase, Piece, in_body, in_head, setting


@dataclass(frozen=True)
class ExtraEpoch(Piece):
    """The personal model is the global one after one more local training: the papers' usual reading."""

    name, slot, paper = "extra_epoch", "personal", "li2023fedetf"
    epochs: int | None = setting(None, "epochs; the task's when not given", ge=1)

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        return [Phase(self.epochs or epochs, stage="trained")]


@dataclass(frozen=True)
class Alternate(Piece):
    """Local training in turns: the head under the received body, then the body under that head."""

    name, slot, paper = "alternate", "personal", "collins2021fedrep"
    head_epochs: int | None = setting(None, "E_h; the task's epochs when not given", ge=1, also="e_h")
    body_epochs: int | None = setting(None, "E_b; the task's epochs when not given", ge=1, also="e_b")

    def requires(self) -> set[str]:
        return {"trained head"}

    def phases(self, epochs: int) -> list[Phase]:
        return [
            Phase(self.head_epochs or epochs, trains=in_head, stage="head"),
            Phase(self.body_epochs or epochs, trains=in_body, stage="body"),
        ]
