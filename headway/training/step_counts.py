"""The number of steps of a phase, and the weight of a round's gradients in its final parameters (K_eff)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway.base.tree import Tree
from headway.core.phase import Phase, Step
from headway.core.recipe import Recipe
from headway.models.net import Net
from headway.training.task import Task


@dataclass(frozen=True)
class Plan:
    """The number of batches per epoch and of steps per phase."""

    batches: int
    steps: int
    lone_sample: bool  # batches of one sample under BatchNorm, which then normalises by its running statistics
    doubled: bool  # such a sample is repeated, because a BatchNorm keeps no running statistics


def batch_plan(task: Task, net: Net, phase: Phase, n: int) -> Plan:
    """The plan of a phase for n samples.

    The last, incomplete batch is kept; if it has one sample, it is skipped under BatchNorm unless it is the only batch.
    """
    batches = math.ceil(n / task.batch_size)
    norms = net.parts().norms
    if norms and n > 1 and n % task.batch_size == 1 and batches > 1:
        batches -= 1
    steps = phase.epochs * batches if phase.steps is None else min(phase.steps, phase.epochs * batches)
    lone = bool(norms) and min(n, task.batch_size) == 1
    return Plan(batches, steps, lone, lone and any(m.running_mean is None for _, m in norms))


def task_step(task: Task, lr: float) -> Step:
    """The step of a parameter by the task's settings; phases and pieces may change it."""
    return Step(lr, task.momentum, task.weight_decay)


def gradient_weights(
    task: Task, net: Net, phases: Sequence[Phase], plan: Sequence[Plan], recipe: Recipe, lr: float,
    pulled: bool = False,
) -> Tree:  # fmt: skip
    """K_eff by parameter: the total weight of the gradients in (w^t - w_k) / eta; infinite if no phase trains it.

    `pulled`: take into account that proximal terms pull w_k back to w^t.
    """
    weights, plain = Tree(), task_step(task, lr)
    for name, p in net.trainable().items():
        if recipe.share(name):
            total = 0.0
            for phase, s in zip(phases, plan, strict=True):
                if phase.trains(name):
                    step = phase.step(plain, name)
                    pull = step.rate * step.pull if pulled else 0.0
                    total += effective_steps(s.steps, step.momentum, pull) * step.rate / lr
            weights[name] = torch.tensor(total or math.inf, device=p.device)
    return weights


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Total weight of the gradients in w_0 - w_tau, over eta: (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho).

    With a proximal term, q = eta mu: the displacement of a unit gradient, m <- rho m + 1 - q d, d <- d + m.
    """
    rho = momentum
    if pull:
        d = m = 0.0
        for _ in range(steps):
            m = rho * m + 1 - pull * d
            d += m
        return d
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
