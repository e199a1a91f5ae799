"""The anchor: a training loop as one writes it by hand, over the very batches of a federated round, and nothing else.

No broadcast, no aggregation, no client state: one model goes on from batch to batch. Its data lies ready as normalised
floats, its optimiser is torch's fastest, and the C library keeps freed memory; a slower anchor would flatter headway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headway.models.net import Normalise
from headway.tree import stream

if TYPE_CHECKING:
    from headway.task import Task

Shard = tuple[Tensor, Tensor, torch.Generator]  # a client's normalised inputs, its labels, its order of samples


def shards(task: Task, t: int) -> list[Shard]:
    """The participants' data of round t, with the order in which headway would go through it."""
    d = task.dataset
    normalise = Normalise(d.mean, d.std, d.scale, len(d.shape))
    ready = []
    for k in task.sampling(t):
        x, y = task.data[k]
        ready.append((normalise(x), y, stream(task.seed, "train", t, k)))
    return ready


class PlainLoop:
    """One model, one optimiser, batch after batch."""

    def __init__(self, model: nn.Module, lr: float, momentum: float, weight_decay: float):
        self.model = model.train()
        self.sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)

    def run(self, work: Sequence[Shard], batch_size: int) -> tuple[int, int]:
        """One epoch of everybody's data; gives the steps made and the samples seen."""
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
    """One pass over the data without training."""
    model.eval()
    for part in x.split(batch):
        model((part.float() * scale - mean) / std)
    return len(x)


def flop_per_sample(model: nn.Module, shape: Sequence[int], classes: int, batch: int) -> float:
    """Arithmetic of one forward and backward pass, counted operation by operation."""
    x, y = torch.zeros(batch, *shape), torch.zeros(batch, dtype=torch.int64)
    with FlopCounterMode(display=False) as count:
        F.cross_entropy(model(x), y).backward()
    model.zero_grad()
    return count.get_total_flops() / batch
