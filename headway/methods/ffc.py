"""Free-form calibration: a closed-form classifier after training (SphereFed, Dong et al., 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from headway.calibration import set_classifier, which_head
from headway.moments import Gram
from headway.piece import Piece, setting

if TYPE_CHECKING:
    from headway.models.net import Net


@dataclass(frozen=True)
class FFC(Piece):
    """Ridge regression of one-hot labels on unit features, from sums that clients send: exact, whatever the split."""

    name, slot, paper, needs_server = "ffc", "calib", "dong2022spherefed", True
    also = {"lambda": "ridge"}  # noqa: RUF012
    ridge: float = setting(1e-6, "lambda, times the mean of A's diagonal", gt=0)
    global_head: str = which_head()

    def survey(self, net: Net, x: Tensor, y: Tensor) -> dict[str, Any]:
        z = torch.nn.functional.normalize(net.embedding_of(x), dim=1).double()  # [n_k, d]
        return {"gram": Gram(z.T @ z, z.T @ one_hot(y, net.classes).double())}  # A_k [d, d], B_k [d, C]

    def calibrate(self, net: Net, surveys: Iterable[dict[str, Any]], rng: torch.Generator) -> Net:
        total = reduce(add, (survey["gram"] for survey in surveys))
        A, B = total.A, total.B
        ridge = self.ridge * A.trace() / len(A)
        W = torch.linalg.solve(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device), B).T  # [C, d]
        return set_classifier(net, W.float(), feat="l2")  # W^T = (sum A_k + lambda I)^-1 sum B_k
