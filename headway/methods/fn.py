"""FedFN: Feature Normalization for Alleviating Data Heterogeneity in Federated Learning (Kim et al., 2023)."""

from typing import Any

from headway.piece import Piece


class FN(Piece):
    """z = W h/||h||, with W trained and unnormalised. The gradient of W shrinks by ||h||: use a larger lr."""

    name, slot, paper = "fn", "head", "kim2023fedfn"

    def head(self) -> dict[str, Any]:
        return {"feat": "l2", "bias": False}
