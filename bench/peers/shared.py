"""What the subjects of bench/peers.py have in common: the job, its data, the networks, counters, the result.

It is imported in the environments of the peers, so it needs torch and NumPy alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

CLASSES = 10
EVALUATE = 512  # batch of an evaluation, everywhere a peer has no own


@dataclass(frozen=True)
class Job:
    """One run: a workload's settings, the folder with its data, and the threads of this subject."""

    folder: str
    model: str  # cnn, wide or table
    rounds: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    evaluate: bool  # after every round, and then the time is that of the whole run
    threads: int
    tune: bool
    fused: bool

    def lists(self) -> tuple[list[list[int]], list[list[int]]]:
        """The samples of every client, and the clients of every round."""
        text = json.loads((Path(self.folder) / "clients.json").read_text())
        return text["clients"], text["participants"][: self.rounds]

    def arrays(self) -> dict[str, Tensor]:
        with np.load(Path(self.folder) / "data.npz") as file:
            return {name: torch.from_numpy(file[name]) for name in ("x", "y", "x_test", "y_test")}

    def sgd(self) -> dict[str, Any]:
        """torch.optim.SGD's settings without the learning rate."""
        fused = {"fused": True} if self.fused else {}
        return {"momentum": self.momentum, "weight_decay": self.weight_decay, **fused}


def job() -> Job:
    """The job of this process, whose threads are set."""
    given = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(given.threads)
    return given


# ---- work done in this process
COUNT = {"samples": 0, "steps": 0}


class Counted(nn.Sequential):
    """A network that counts the samples it is trained on."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            COUNT["samples"] += len(x)
        return super().forward(x)


def count_steps(leave_out: torch.optim.Optimizer | None = None) -> None:
    """From now on COUNT has the steps of every optimiser but one."""

    def hook(optimiser: torch.optim.Optimizer, *_: object) -> None:
        COUNT["steps"] += optimiser is not leave_out

    register_optimizer_step_post_hook(hook)


def layers(model: str) -> list[nn.Module]:
    """The layers that headway's models of the workloads have (headway/models/cnn.py, mlp.py)."""
    torch.manual_seed(0)
    if model == "cnn":
        convs = [nn.Conv2d(3, 32, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU()]
        return [*convs, nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, CLASSES)]
    if model == "wide":
        return [nn.Flatten(), nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, CLASSES)]
    return [nn.Linear(30, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES)]


@torch.no_grad()
def accuracy(model: nn.Module, data: dict[str, Tensor]) -> float:
    """The share of the whole test set that is right."""
    model.eval()
    parts = zip(data["x_test"].split(EVALUATE), data["y_test"].split(EVALUATE), strict=True)
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in parts) / len(data["y_test"])


def train(model: nn.Module, x: Tensor, y: Tensor, batch: int, optimiser: torch.optim.Optimizer) -> None:
    """One epoch in random order."""
    model.train()
    for i in torch.randperm(len(y)).split(batch):
        optimiser.zero_grad()
        F.cross_entropy(model(x.index_select(0, i)), y.index_select(0, i)).backward()
        optimiser.step()


# ---- the result
class Clock:
    """Times of a run: its beginning, and when the training of each round had ended."""

    def __init__(self) -> None:
        self.begin, self.rounds = time.perf_counter(), list[float]()

    def whole(self) -> float:
        """Seconds from the beginning until now."""
        return time.perf_counter() - self.begin

    def round(self) -> None:
        self.rounds.append(time.perf_counter())


def finish(given: Job, clock: Clock, whole: float, reached: float, counted: dict[str, int] = COUNT) -> None:
    """Print the result: the seconds of the whole run or, without evaluation, of a round; the first is left out."""
    assert len(clock.rounds) == given.rounds, f"{len(clock.rounds)} rounds instead of {given.rounds}"
    each = (clock.rounds[-1] - clock.rounds[0]) / max(1, given.rounds - 1)
    line = {"seconds": whole if given.evaluate else each, "rounds": given.rounds, **counted, "accuracy": reached}
    print("\n" + json.dumps(line), flush=True)


def cores() -> int:
    return len(os.sched_getaffinity(0))
