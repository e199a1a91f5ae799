"""FedAwS: Federated Learning with Only Positive Labels (Yu et al., 2020): the server spreads class vectors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from headway.piece import Piece, setting
from headway.state import Report
from headway.tree import Tree


@dataclass(frozen=True)
class Spread(Piece):
    """After each aggregation, J steps that push apart class vectors closer than nu; clients keep plain CE."""

    name, slot, paper = "spread", "post", "yu2020fedaws"
    also = {"j": "steps"}  # noqa: RUF012
    needs_server = moves_classifier = True
    nu: float = setting(0.5, "nu, the distance wanted; 0.5 is orthogonal", ge=0, le=1)
    steps: int = setting(50, "J", ge=0)
    lr: float = setting(0.01, "learning rate of the spread", gt=0)
    neutral = {"steps": 0}  # noqa: RUF012

    def post(self, w: Tree, reports: Sequence[Report]) -> Tree:
        W = w["head.weight"].clone().requires_grad_()  # [C, d]
        sgd = torch.optim.SGD([W], lr=self.lr, momentum=0.9)
        for _ in range(self.steps):
            with torch.enable_grad():
                unit = normalize(W, dim=1)
                d = (1 - unit @ unit.T) / 2  # d(w_c, w_c') = (1 - cos) / 2, [C, C]
                apart = (self.nu - d).clamp(min=0).square().fill_diagonal_(0)
                loss = apart.sum() / len(W) ** 2  # 1/C^2 sum_{c != c'} max(0, nu - d)^2
            (W.grad,) = torch.autograd.grad(loss, [W])
            sgd.step()
        return w | Tree({"head.weight": W.detach()}) if self.steps else w
