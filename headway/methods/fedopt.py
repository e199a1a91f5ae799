"""FedOpt: Adaptive Federated Optimization (Reddi et al., 2021): server SGD, Adagrad, Adam and Yogi."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Net, Note, Piece, Tree, setting, torch


@dataclass(frozen=True)
class FedOpt(Piece):
    """The averaged update is the pseudo-gradient of a server SGD with momentum."""

    name, slot, paper = "fedopt", "base", "reddi2021fedopt"
    server_lr: float = setting(0.1, "eta_g", gt=0, neutral=1.0)
    momentum: float = setting(0.9, "server momentum", ge=0, lt=1, neutral=0.0)

    def init_server(self, w: Tree, net: Net) -> Note:
        return {"m": w.zeros()}

    def absorb(self, arrived: Arrived) -> Note:
        return {"m": self.momentum * arrived.kept["m"] + (arrived.w_new - arrived.w)}  # Delta = sum_k p_k (w_k - w^t)

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        if self.momentum == 0 and self.server_lr == 1:
            return w  # w^t + (w - w^t) rounds differently; FedAvg to the last bit
        return arrived.w + self.server_lr * arrived.kept["m"]


def start(w: Tree, eps: float) -> Note:
    return {"m": w.zeros(), "v": w.zeros() + eps**2}  # v_0 = eps^2


def momentum(arrived: Arrived, b1: float) -> Tree:
    """m <- b1 m + (1 - b1) Delta, Delta = sum_k p_k (w_k - w^t)."""
    return b1 * arrived.kept["m"] + (1 - b1) * (arrived.w_new - arrived.w)


def square(arrived: Arrived) -> Tree:
    """Delta^2, element by element."""
    return (arrived.w_new - arrived.w).map(torch.square)


def adaptive(arrived: Arrived, lr: float, eps: float) -> Tree:
    """w <- w^t + eta_g m / (sqrt(v) + eps). No bias correction, as in the paper."""
    return arrived.w + lr * arrived.kept["m"] / (arrived.kept["v"].map(torch.sqrt) + eps)


@dataclass(frozen=True)
class FedAdagrad(Piece):
    """v <- v + Delta^2, without momentum."""

    name, slot, paper = "fedadagrad", "base", "reddi2021fedopt"
    server_lr: float = setting(0.1, "eta_g", gt=0)
    eps: float = setting(1e-3, "eps_s, adaptivity", gt=0)

    def init_server(self, w: Tree, net: Net) -> Note:
        return start(w, self.eps)

    def absorb(self, arrived: Arrived) -> Note:
        return {"m": momentum(arrived, 0.0), "v": arrived.kept["v"] + square(arrived)}

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        return adaptive(arrived, self.server_lr, self.eps)


@dataclass(frozen=True)
class FedAdam(Piece):
    """v <- b2 v + (1 - b2) Delta^2."""

    name, slot, paper = "fedadam", "base", "reddi2021fedopt"
    server_lr: float = setting(0.03, "eta_g", gt=0)
    b1: float = setting(0.9, "decay of m", ge=0, lt=1)
    b2: float = setting(0.99, "decay of v", ge=0, lt=1)
    eps: float = setting(1e-3, "eps_s, adaptivity", gt=0)

    def init_server(self, w: Tree, net: Net) -> Note:
        return start(w, self.eps)

    def absorb(self, arrived: Arrived) -> Note:
        v = self.b2 * arrived.kept["v"] + (1 - self.b2) * square(arrived)
        return {"m": momentum(arrived, self.b1), "v": v}

    def server_step(self, w: Tree, arrived: Arrived) -> Tree:
        return adaptive(arrived, self.server_lr, self.eps)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """v <- v - (1 - b2) Delta^2 sign(v - Delta^2); all else is FedAdam's."""

    name, slot, paper = "fedyogi", "base", "reddi2021fedopt"

    def absorb(self, arrived: Arrived) -> Note:
        v, squared = arrived.kept["v"], square(arrived)
        v = v - (1 - self.b2) * squared * (v - squared).map(torch.sign)
        return {"m": momentum(arrived, self.b1), "v": v}
