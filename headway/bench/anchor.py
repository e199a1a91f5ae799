"""The reference for speed: a plain training loop over the same batches as a federated round.

It has no broadcast, no aggregation and no client states: one model is trained on all batches. It is as fast as
possible, so that the comparison is fair: the data are normalised beforehand, the optimiser is torch's fastest, and the
C library keeps freed memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headway.base.tree import stream
from headway.models.net import Normalise

if TYPE_CHECKING:
    from headway.training.task import Task

Shard = tuple[Tensor, Tensor, torch.Generator]  # a client's normalised inputs, its labels, its order of samples


def shards(task: Task, t: int) -> list[Shard]:
    """The data of round t's participants, with the random streams that give headway's order of samples."""
    d = task.dataset
    normalise = Normalise(d.mean, d.std, d.scale, len(d.shape))
    ready = []
    for k in task.sampling(t):
        x, y = task.data[k]
        ready.append((normalise(x), y, stream(task.seed, "train", t, k)))
    return ready


class PlainLoop:
    """Trains one model with one optimiser."""

    def __init__(self, model: nn.Module, lr: float, momentum: float, weight_decay: float):
        self.model = model.train()
        self.sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)

    def run(self, work: Sequence[Shard], batch_size: int) -> tuple[int, int]:
        """One epoch over all participants' data; returns the numbers of steps and samples."""
        steps = samples = 0
        for x, y, order in work:
            for i in torch.randperm(len(y), generator=order).split(batch_size):
                self.sgd.zero_grad()
                F.cross_entropy(self.model(x.index_select(0, i)), y.index_select(0, i)).backward()
                self.sgd.step()
                steps += 1
                samples += len(i)
        return steps, samples


@torch.no_grad()
def forward(model: nn.Module, x: Tensor, mean: Tensor, std: Tensor, scale: float, batch: int = 512) -> int:
    """One pass over the data without training; returns the number of samples."""
    model.eval()
    for part in x.split(batch):
        model((part.float() * scale - mean) / std)
    return len(x)


def flop_per_sample(model: nn.Module, shape: Sequence[int], classes: int, batch: int) -> float:
    """Floating-point operations of one forward and backward pass, per sample, as torch counts them."""
    x, y = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as count:
        F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    return count.get_total_flops() / batch
