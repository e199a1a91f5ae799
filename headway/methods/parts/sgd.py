"""SGD for classifiers that the server trains: torch.optim.SGD's arithmetic, bit for bit.

torch.optim imports torch's compiler at its first step, which takes longer than most calibrations. The fused kernel of
training/sgd.py rounds in another way, so it would change the results of calibrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.base.lazy import Tensor, torch


@dataclass(eq=False)
class SGD:
    """m <- momentum m + g + weight_decay w, then w <- w - lr m, by the gradients in `grad`, which `step` clears."""

    params: Sequence[Tensor]
    lr: float
    momentum: float
    weight_decay: float = 0.0
    buffers: dict[int, Tensor] = field(default_factory=dict)  # position of the parameter -> m

    def step(self) -> None:
        with torch.no_grad():
            for at, w in enumerate(self.params):
                if w.grad is None:
                    continue
                g = w.grad.add(w, alpha=self.weight_decay) if self.weight_decay else w.grad
                m = self.buffers[at].mul_(self.momentum).add_(g) if at in self.buffers else g.clone()
                self.buffers[at] = m
                w.add_(m, alpha=-self.lr)
                w.grad = None
