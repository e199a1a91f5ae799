"""FedExP: Speeding Up Federated Averaging via Extrapolation (Jhunjhunwala et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Net, Note, Piece, Tree, mean, setting


@dataclass(frozen=True)
class FedExP(Piece):
    """The server steps further when client updates disagree; it predicts with the mean of the last two iterates."""

    name, slot, paper = "fedexp", "base", "jhunjhunwala2023fedexp"
    eps: float = setting(1e-3, "eps", gt=0)
    average: bool = setting(True, "evaluate (w^{t+1} + w^t) / 2; training goes on from w^{t+1}")

    def provides(self) -> set[str]:
        return {"averaged model"}

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"last": w}

    def _extrapolation(self, arrived: Arrived) -> tuple[float, Tree]:
        deltas = [r.w - arrived.w for r in arrived.reports]  # Delta_k = w_k - w^t
        dbar = mean(deltas, arrived.p)  # Dbar = sum_k p_k Delta_k
        spread = sum(q * float(d.sq_norm()) for q, d in zip(arrived.p, deltas, strict=True))  # sum_k p_k ||Delta_k||^2
        return max(1.0, spread / (2 * (float(dbar.sq_norm()) + self.eps))), dbar  # eta_g, Dbar

    def aggregate(self, arrived: Arrived) -> Tree:
        eta_g, dbar = self._extrapolation(arrived)
        return arrived.w + eta_g * dbar  # w^{t+1} = w^t + eta_g Dbar

    def absorb(self, arrived: Arrived) -> Note:
        return {"last": arrived.w, "eta_g": self._extrapolation(arrived)[0]}

    def evaluated(self, w: Tree, kept: Note) -> Tree:  # (w^{t+1} + w^t) / 2
        return 0.5 * (w + kept["last"]) if self.average else w
