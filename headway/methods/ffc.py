"""Free-form calibration: a closed-form classifier after training (SphereFed, Dong et al., 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from headway.core import F, Net, Note, Piece, Setup, Tensor, setting, torch
from headway.methods.parts.calibration import check_calibration, needs, which_head
from headway.models.moments import Gram


@dataclass(frozen=True)
class FFC(Piece):
    """Ridge regression of one-hot labels on unit features, from sums that clients send: exact, whatever the split."""

    name, slot, paper = "ffc", "calib", "dong2022spherefed"
    ridge: float = setting(1e-6, "lambda, times the mean of A's diagonal", gt=0, also="lambda")
    global_head: str = which_head()

    def requires(self) -> set[str]:
        return needs(self.global_head)

    def check(self, setup: Setup) -> list[str]:
        return check_calibration(self, setup.recipe, self.global_head)

    def survey(self, net: Net, x: Tensor, y: Tensor) -> Note:
        z = F.normalize(net.embedding_of(x), dim=1).double()  # [n_k, d]
        return {"gram": Gram(z.T @ z, z.T @ F.one_hot(y, net.classes).double())}  # A_k [d, d], B_k [d, C]

    def calibrate(self, net: Net, surveys: Iterable[Note], rng: torch.Generator) -> Net:
        total = reduce(add, (survey["gram"] for survey in surveys))
        A, B = total.A, total.B
        ridge = self.ridge * A.trace() / len(A)
        W = torch.linalg.solve(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device), B).T  # [C, d]
        return net.set_classifier(W.float(), feat="l2")  # W^T = (sum A_k + lambda I)^-1 sum B_k
