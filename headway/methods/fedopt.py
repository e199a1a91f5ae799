"""FedOpt: Adaptive Federated Optimization (Reddi et al., 2021): server SGD, Adagrad, Adam and Yogi."""

from dataclasses import dataclass
from typing import Any

import torch

from headway.piece import Piece, setting
from headway.tree import Tree


@dataclass(frozen=True)
class FedOpt(Piece):
    """The averaged update is the pseudo-gradient of a server SGD with momentum."""

    name, slot, paper, neutral = "fedopt", "base", "reddi2021fedopt", {"server_lr": 1.0, "momentum": 0.0}
    server_lr: float = setting(0.1, "eta_g", gt=0)
    momentum: float = setting(0.9, "server momentum", ge=0, lt=1)

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {"m": w.zeros()}

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        delta = w_new - w  # Delta = sum_k p_k (w_k - w)
        if self.momentum == 0 and self.server_lr == 1:
            return w_new, {"m": delta}  # w + (w_new - w) rounds differently; FedAvg to the last bit
        m = self.momentum * kept["m"] + delta
        return w + self.server_lr * m, {"m": m}


def adaptive(w: Tree, w_new: Tree, kept: dict[str, Any], v: Tree, b1: float, lr: float, eps: float) -> tuple[Tree, Any]:
    """m <- b1 m + (1 - b1) Delta; w <- w + eta_g m / (sqrt(v) + eps). No bias correction, as in the paper."""
    m = b1 * kept["m"] + (1 - b1) * (w_new - w)
    return w + lr * m / (v.map(torch.sqrt) + eps), {"m": m, "v": v}


def start(w: Tree, eps: float) -> dict[str, Any]:
    return {"m": w.zeros(), "v": w.zeros() + eps**2}  # v_0 = eps^2


@dataclass(frozen=True)
class FedAdagrad(Piece):
    """v <- v + Delta^2, without momentum."""

    name, slot, paper = "fedadagrad", "base", "reddi2021fedopt"
    server_lr: float = setting(0.1, "eta_g", gt=0)
    eps: float = setting(1e-3, "eps_s, adaptivity", gt=0)

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return start(w, self.eps)

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        v = kept["v"] + (w_new - w).map(torch.square)
        return adaptive(w, w_new, kept, v, 0.0, self.server_lr, self.eps)


@dataclass(frozen=True)
class FedAdam(Piece):
    """v <- b2 v + (1 - b2) Delta^2."""

    name, slot, paper = "fedadam", "base", "reddi2021fedopt"
    server_lr: float = setting(0.03, "eta_g", gt=0)
    b1: float = setting(0.9, "decay of m", ge=0, lt=1)
    b2: float = setting(0.99, "decay of v", ge=0, lt=1)
    eps: float = setting(1e-3, "eps_s, adaptivity", gt=0)

    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return start(w, self.eps)

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        v = self.b2 * kept["v"] + (1 - self.b2) * (w_new - w).map(torch.square)
        return adaptive(w, w_new, kept, v, self.b1, self.server_lr, self.eps)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """v <- v - (1 - b2) Delta^2 sign(v - Delta^2); all else is FedAdam's."""

    name, slot, paper = "fedyogi", "base", "reddi2021fedopt"

    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        square = (w_new - w).map(torch.square)
        v = kept["v"] - (1 - self.b2) * square * (kept["v"] - square).map(torch.sign)
        return adaptive(w, w_new, kept, v, self.b1, self.server_lr, self.eps)
