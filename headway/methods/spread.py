"""FedAwS: Federated Learning with Only Positive Labels (Yu et al., 2020): the server spreads class vectors."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, F, Piece, Tree, setting, torch
from headway.methods.parts.sgd import SGD


@dataclass(frozen=True)
class Spread(Piece):
    """After each aggregation, J steps that push apart class vectors closer than nu; clients keep plain CE."""

    name, slot, paper = "spread", "post", "yu2020fedaws"
    nu: float = setting(0.5, "nu, the distance wanted; 0.5 is orthogonal", ge=0, le=1)
    steps: int = setting(50, "J", ge=0, also="j", neutral=0)
    lr: float = setting(0.01, "learning rate of the spread", gt=0)

    def requires(self) -> set[str]:
        return {"server", "trained classifier", "shared classifier"}

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        W = w["head.weight"].clone().requires_grad_()  # [C, d]
        sgd = SGD([W], lr=self.lr, momentum=0.9)
        for _ in range(self.steps):
            with torch.enable_grad():
                unit = F.normalize(W, dim=1)
                d = (1 - unit @ unit.T) / 2  # d(w_c, w_c') = (1 - cos) / 2, [C, C]
                apart = (self.nu - d).clamp(min=0).square().fill_diagonal_(0)
                loss = apart.sum() / len(W) ** 2  # 1/C^2 sum_{c != c'} max(0, nu - d)^2
            (W.grad,) = torch.autograd.grad(loss, [W])
            sgd.step()
        return w | Tree({"head.weight": W.detach()}) if self.steps else w
