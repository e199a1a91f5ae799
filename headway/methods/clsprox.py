"""clsprox: a proximal term on the classifier alone (No Fear of Heterogeneity, Luo et al., 2021, Table 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core import Batch, Local, Piece, Step, Tensor, in_head, setting


@dataclass(frozen=True)
class ClsProx(Piece):
    """mu/2 ||W - W^t||^2 over the classifier's weight and bias."""

    name, slot, paper = "clsprox", "reg", "luo2021ccvr"
    mu: float = setting(0.001, "mu, strength of the pull", ge=0, neutral=0.0)

    def requires(self) -> set[str]:
        return {"server", "trained classifier", "shared classifier"}

    def step(self, step: Step, name: str) -> Step:
        return replace(step, pull=step.pull + self.mu) if in_head(name) else step

    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return self.mu / 2 * (local.w.only(in_head) - local.w0.only(in_head)).sq_norm()
