"""Per-FedAvg: Personalized Federated Learning with Theoretical Guarantees (Fallah et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import Arrived, Grad, Local, Phase, Piece, Step, Tree, setting


@dataclass(frozen=True)
class PerFedAvg(Piece):
    """Learns a start that is good after one local gradient step (MAML)."""

    name, slot, paper = "perfedavg", "base", "fallah2020perfedavg"
    order: str = setting("fo", "fo: first order; hf: with a Hessian-vector product", choices=("fo", "hf"))
    alpha: float | None = setting(None, "alpha, inner step; eta_t when not given", gt=0)
    beta: float | None = setting(None, "beta, outer step; eta_t when not given", gt=0)
    delta: float = setting(1e-3, "delta, of the finite difference", gt=0)

    def gradient(self, grad: Grad, local: Local) -> Tree:
        alpha, w = self.alpha or local.lr, local.net.params().copy()
        g = grad(at=w - alpha * grad(still=True), batch=1)  # g' = grad f(w'; D'), w' = w - alpha grad f(w; D)
        outer = 1.0 if self.beta is None else self.beta / local.lr  # the optimiser steps by eta_t
        if self.order == "fo":
            return outer * g
        step = self.delta * g  # H g' by a difference of two gradients at w, both on D''
        ahead, behind = (grad(at=at, batch=2, still=True) for at in (w + step, w - step))
        return outer * (g - alpha * (ahead - behind) / (2 * self.delta))

    def aggregate(self, arrived: Arrived) -> Tree:
        return arrived.mean(arrived.uniform)  # whatever the sizes


@dataclass(frozen=True)
class OneStep(Piece):
    """Per-FedAvg's personal model: one gradient step, or a few, on the client's training data."""

    name, slot, paper = "one_step", "personal", "fallah2020perfedavg"
    steps: int = setting(1, "gradient steps", ge=1)
    lr: float | None = setting(None, "alpha; perfedavg's, or eta_T, when not given", gt=0)

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        def step(step: Step, name: str) -> Step:  # the very step that was learned for: w - alpha grad f
            return Step(step.rate if self.lr is None else self.lr, momentum=0.0, decay=0.0)

        return [Phase(self.steps, step=step, steps=self.steps, loss="criterion", stage="adapted")]
