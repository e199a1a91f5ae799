"""FedFN: Feature Normalization for Alleviating Data Heterogeneity in Federated Learning (Kim et al., 2023)."""

from __future__ import annotations

from headway.core import Note, Piece


class FN(Piece):
    """z = W h/||h||, with W trained and unnormalised. The gradient of W shrinks by ||h||: use a larger lr."""

    name, slot, paper = "fn", "head", "kim2023fedfn"

    def head(self) -> Note:
        return {"feat": "l2", "bias": False}
