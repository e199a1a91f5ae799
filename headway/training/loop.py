"""The training loop: one phase of one client, batch after batch. All local training uses it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headway.base.names import in_body, in_head
from headway.base.tree import Tree, seed_of, stream
from headway.core.local import Batch, Local
from headway.core.phase import Phase
from headway.core.recipe import FEDAVG, Recipe
from headway.models.net import Net
from headway.training.sgd import SGD, ParameterGroup
from headway.training.step_counts import Plan, task_step
from headway.training.task import Task


@dataclass(frozen=True)
class Trained:
    """The result of a phase, besides the trained net."""

    momentum: Tree  # the optimiser's buffers; empty unless clients keep them
    loss: float  # mean training loss of the last epoch
    last_epoch: tuple[Tensor, Tensor] | None  # h [n, d] and y [n] of the last epoch, if a piece requires them
    features: Tensor | None  # [n_k, d], if the phase did not change them


@dataclass(frozen=True)
class Samples:
    """A mini-batch before the forward pass."""

    x: Tensor  # [B, ...] as stored, augmented
    y: Tensor  # [B]
    rows: Tensor | None  # [B] positions among the client's samples; None where x is augmented


def run_phase(
    recipe: Recipe, task: Task, local: Local, phase: Phase, plan: Plan, rng: torch.Generator, momentum: Tree,
    known: Tensor | None = None,
) -> Trained:  # fmt: skip
    """Train the net of `local` through one phase; `known`: the client's features, if the phase before left them."""
    net, y = local.net, local.y
    set_mode(net, phase, lone_sample=plan.lone_sample)
    sgd = optimiser(task, phase, net, local.lr, momentum)
    features = fixed_features(task, local, phase, known)
    loss_of = Loss(recipe, task, local, phase, features)
    acting = recipe if phase.loss == "recipe" else FEDAVG
    watched = acting is recipe and bool(recipe.acting("gradient") or recipe.acting("correct"))
    direct = not watched and task.clip_norm is None
    losses: list[Tensor] = []
    left = plan.steps
    for _ in range(phase.epochs):
        losses = []
        loss_of.seen = []
        for i in torch.randperm(len(y), generator=rng).split(task.batch_size)[: plan.batches][:left]:
            index = i.repeat(2) if plan.doubled else i
            left -= 1
            if direct:  # no piece changes the gradient: pass it from autograd straight to the optimiser
                loss = loss_of(loss_of.samples(index, rng))
                losses.append(loss.detach())
                sgd.step(torch.autograd.grad(loss, sgd.params, allow_unused=True))
                continue
            g = acting.gradient(Backward(loss_of, index, rng, losses), local)
            net.set_gradient(g | acting.correct(g.only(local.w0.__contains__), local))
            if task.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(sgd.params, task.clip_norm)
            sgd.step()
    last = float(torch.stack(losses).mean()) if losses else math.nan
    seen = [torch.cat(part) for part in zip(*loss_of.seen, strict=True)]
    last_epoch = (seen[0], seen[1]) if seen else None
    return Trained(sgd.buffers() if task.persist_momentum else Tree(), last, last_epoch, features)


def fixed_features(task: Task, local: Local, phase: Phase, known: Tensor | None) -> Tensor | None:
    """The client's features, if neither the body nor the inputs change during the phase; else None."""
    net = local.net
    if moves_body(net, phase) or phase.train_mode:
        return None
    if task.augment or any(m.running_mean is None for _, m in net.parts().norms):
        return None
    return net.features_of(local.x) if known is None else known


def optimiser(task: Task, phase: Phase, net: Net, lr: float, momentum: Tree) -> SGD:
    """A new optimiser for a phase; parameters with equal step settings form a group, updated by one fused kernel."""
    plain = task_step(task, lr)
    groups: dict[tuple[float, float, float], ParameterGroup] = {}
    for name, p in net.trainable().items():
        if phase.trains(name):
            step = phase.step(plain, name)
            rates = (step.rate, step.momentum, step.decay)
            group = groups.setdefault(rates, ParameterGroup(*rates))
            group.params[name] = p
            if name in momentum:
                group.buffers[name] = torch.empty_like(p, requires_grad=False).copy_(momentum[name])
    return SGD(list(groups.values()))


class Loss:
    """The recipe's loss on batches of one phase. What does not change between steps is computed in the constructor."""

    def __init__(self, recipe: Recipe, task: Task, local: Local, phase: Phase, features: Tensor | None):
        self.recipe, self.task, self.local, self.phase = recipe, task, local, phase
        self.features = features  # [n_k, d], if they are fixed in this phase
        self.net, self.head = local.net, local.net.head
        two, whole = bool(self.head.two_classifiers), phase.loss == "recipe"
        self.plain = phase.loss == "ce" or (phase.loss == "criterion" and two)
        self.own_classifier = self.head.personal if two else self.head  # it predicts for this client
        self.collects = whole and "features of the last epoch" in recipe.requires()
        self.seen: list[tuple[Tensor, Tensor]] = []  # h and y of this epoch's batches
        decider = recipe.decider("criterion")
        self.criterion, self.view = decider.criterion, local.of(decider)
        self.lifted, self.penalised = (whole and bool(recipe.acting(hook)) for hook in ("lift", "penalty"))
        self.amp = task.settings.amp

    def samples(self, index: Tensor, rng: torch.Generator) -> Samples:
        local = self.local
        rows = index.to(local.x.device)
        x, y = local.x.index_select(0, rows), local.y.index_select(0, rows)
        if self.task.augment:
            return Samples(self.task.augment(x, rng), y, None)
        return Samples(x, y, rows)  # rows: to look up features that were computed once

    def __call__(self, s: Samples) -> Tensor:
        if not self.amp:
            return self._loss(s)
        with torch.autocast(self.task.device.type, dtype=torch.bfloat16):  # parameters and steps stay in float32
            return self._loss(s)

    def _loss(self, s: Samples) -> Tensor:
        recipe, local, y = self.recipe, self.local, s.y
        h = self.net.features(s.x) if self.features is None else self.features[s.rows]  # [B, d]
        if self.collects:
            self.seen.append((h.detach(), y))
        if self.plain:
            return FEDAVG.criterion(Batch(s.x, y, h, self.own_classifier(h)), local)  # type: ignore[operator]
        lifted = recipe.lift(h, y, local) if self.lifted else h
        batch = Batch(s.x, y, h, self.head(lifted), lifted, s.rows)
        loss = self.criterion(batch, self.view)
        return loss + recipe.penalty(batch, local) if self.penalised else loss


@dataclass(eq=False)
class Backward:
    """One forward and backward pass: the gradient of the recipe's loss over all parameters (core/piece.py: Grad).

    Used for one step. It adds each pass's loss to `losses`, and keeps the batches that it drew.
    """

    loss: Loss
    index: Tensor  # [B] the step's own batch
    rng: torch.Generator
    losses: list[Tensor]
    drawn: dict[int, Samples] = field(default_factory=dict)

    def __call__(self, at: Tree | None = None, batch: int = 0, still: bool = False) -> Tree:
        net = self.loss.net
        samples = self.batch(batch)
        present = None if at is None else net.params().only(lambda name: name in at).copy()
        if at is not None:
            net.load(at)
        with frozen_statistics(net) if still else nullcontext():
            loss = self.loss(samples)
            net.zero_grad()
            loss.backward()
        self.losses.append(loss.detach())
        if present is not None:
            net.load(present)
        return Tree({k: g if self.loss.phase.trains(k) else torch.zeros_like(g) for k, g in net.gradient().items()})

    def batch(self, number: int) -> Samples:
        """Batch 0 is the step's own; others are drawn from the client's data, of the same size, once each."""
        if number not in self.drawn:
            fresh = self.index
            if number:
                fresh = torch.randperm(len(self.loss.local.y), generator=self.rng)[: len(fresh)]
                fresh = fresh.repeat(len(self.index) // len(fresh))  # a single sample is doubled here too
            self.drawn[number] = self.loss.samples(fresh, self.rng)
        return self.drawn[number]


@contextmanager
def frozen_statistics(net: Net) -> Iterator[None]:
    """Normalise by batch statistics as in training, without updating the running statistics."""
    norms = [m for _, m in net.parts().norms]
    rates = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, rate in zip(norms, rates, strict=True):
            m.momentum = rate


def moves_body(net: Net, phase: Phase) -> bool:
    """Whether a phase trains the body. A body without parameters, such as a lone dropout, counts as `body.weight`."""
    names = [name for name in net.trainable() if in_body(name)] or ["body.weight"]
    return any(phase.trains(name) for name in names)


def set_mode(net: Net, phase: Phase, lone_sample: bool) -> None:
    """Train mode only for the parts that the phase trains: a frozen body must not update its running statistics."""
    if phase.train_mode and not lone_sample:
        net.set_mode(body=True, head=True, rest=True)
        return
    head = any(phase.trains(name) for name in net.trainable() if in_head(name))
    net.set_mode(body=moves_body(net, phase), head=head, rest=phase.train_mode)
    for prefix, module in net.parts().norms:
        own = [f"{prefix}.{key}" for key, _ in module.named_parameters(recurse=False)]
        if lone_sample or (own and not any(phase.trains(name) for name in own)):
            module.eval()


@contextmanager
def named_randomness(task: Task, purpose: str, t: int, k: int) -> Iterator[torch.Generator]:
    """The random stream of one client's round. The global generator, which dropout uses, is seeded too."""
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = seed_of(task.seed, "dropout", purpose, t, k)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also writes a traceback for every absent device
        if devices:
            with torch.cuda.device(task.device):
                torch.cuda.manual_seed(seed)
        yield stream(task.seed, purpose, t, k)
