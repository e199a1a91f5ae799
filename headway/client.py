"""One client's work, as pure functions of values: engines only decide where they run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headway.local import Batch, Local, Phase, effective_steps
from headway.models.net import Net
from headway.recipes import FEDAVG, Recipe
from headway.state import Broadcast, Client, Report
from headway.tree import Tree, seed_of, stream

if TYPE_CHECKING:
    from headway.task import Task

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def first_client(recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
    """A client that has not taken part yet: its personal parameters at their first values, its notes fresh."""
    return Client(k, task.first_params(recipe).only(lambda name: not recipe.share(name)), recipe.init_client(cast.w))


def train_client(recipe: Recipe, task: Task, cast: Broadcast, client: Client) -> tuple[Report, Client]:
    """One client's round: a pure function of its arguments."""
    x, y = task.data[client.id]
    net = task.net(recipe).load(cast.w, client.personal, cast.stats)
    phases = recipe.phases(task.epochs)
    lr = task.lr(cast.round)
    plan = [batch_plan(task, net, phase, len(y)) for phase in phases]
    local = Local(
        net, cast.w, x, y, cast.round, lr, gradient_weights(task, net, phases, plan, recipe, lr),
        recipe.share, kept=client.kept, sent=cast.sent, ready={},
    )  # fmt: skip
    local = local.prepared(recipe.prepare(local))

    momentum, loss = Tree(), math.nan
    with named_randomness(task, "train", cast.round, client.id) as rng:
        for phase, sizes in zip(phases, plan, strict=True):
            buffers, loss = run_phase(recipe, task, local, phase, sizes, rng, client.momentum)
            momentum = momentum | buffers

    with torch.no_grad():
        w = net.params().copy()
        shared = w.only(recipe.share)
        send, keep = recipe.report(shared, local)
        up = recipe.upload(shared, local)
    report = Report(client.id, len(y), sum(s.steps for s in plan), up, net.stats(), send, loss)
    personal = w.only(lambda name: not recipe.share(name))
    return report, Client(client.id, personal, keep, momentum if task.persist_momentum else Tree())


def personal_net(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, phases: Sequence[Phase]
) -> Iterator[tuple[str, Net]]:
    """The client's own model, from the global one: first as received, then after each phase it trains for itself."""
    net = task.net(recipe).load(cast.w, client.personal, cast.stats).eval()
    yield "received", net
    if not phases:
        return
    net.thaw(lambda name: any(phase.thaws(name) for phase in phases))
    x, y = task.data[client.id]
    if not len(y):
        return
    lr = task.lr(cast.round)
    local = Local(net, cast.w, x, y, cast.round, lr, Tree(), recipe.share, kept=client.kept, sent=cast.sent, ready={})
    local = local.prepared(recipe.prepare(local))
    with named_randomness(task, "personal", cast.round, client.id) as rng:
        for number, phase in enumerate(phases):
            run_phase(recipe, task, local, phase, batch_plan(task, net, phase, len(y)), rng, Tree())
            yield phase.stage or f"phase {number + 1}", net.eval()


def run_phase(
    recipe: Recipe, task: Task, local: Local, phase: Phase, plan: Plan, rng: torch.Generator,
    momentum: Tree,
) -> tuple[Tree, float]:  # fmt: skip
    """Train through one phase; gives the momentum buffers and the mean loss of the last epoch."""
    net, x, y = local.net, local.x, local.y
    set_mode(net, phase, lone_sample=plan.lone_sample)
    trained = {name: p for name, p in net.named_parameters() if phase.trains(name)}
    sgd = torch.optim.SGD(
        [{"params": [p], "lr": rate_of(phase, local.lr) * phase.lr(name)} for name, p in trained.items()],
        lr=local.lr, momentum=task.momentum, weight_decay=task.weight_decay,
    )  # fmt: skip
    for name, p in trained.items():
        if name in momentum:
            sgd.state[p]["momentum_buffer"] = momentum[name].clone()

    losses: list[Tensor] = []
    for _ in range(phase.epochs):
        losses = []
        for i in torch.randperm(len(y), generator=rng).split(task.batch_size)[: plan.batches]:
            i = i.repeat(2) if plan.doubled else i
            xb, yb = x[i.to(x.device)], y[i.to(y.device)]
            if task.augment:
                xb = task.augment(xb, rng)
            g = recipe.gradient(Backward(recipe, local, phase, xb, yb, losses), local)
            if phase.loss == "recipe":
                g = recipe.correct(g, local)
            net.set_gradient(g)
            if task.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(list(trained.values()), task.clip_norm)
            sgd.step()
    buffers = {n: sgd.state[p].get("momentum_buffer") for n, p in trained.items() if p in sgd.state}
    loss = float(torch.stack(losses).mean()) if losses else math.nan
    return Tree({n: b.clone() for n, b in buffers.items() if b is not None}), loss


@dataclass(frozen=True)
class Backward:
    """One forward and backward pass on one batch, at the net's present parameters."""

    recipe: Recipe
    local: Local
    phase: Phase
    x: Tensor
    y: Tensor
    losses: list[Tensor]

    def __call__(self) -> Tree:
        net, recipe, whole = self.local.net, self.recipe, self.phase.loss == "recipe"
        h = net.features(self.x)  # [B, d]
        z = net.head(recipe.lift(h, self.y, self.local) if whole else h)  # [B, C]
        batch = Batch(self.x, self.y, h, z)
        judge = FEDAVG if self.phase.loss == "ce" else recipe
        loss = judge.criterion(batch, self.local)
        if whole and recipe.acting("penalty"):
            loss = loss + recipe.penalty(batch, self.local)
        net.zero_grad()
        loss.backward()
        self.losses.append(loss.detach())
        return net.gradient().only(recipe.share)


@dataclass(frozen=True)
class Plan:
    """How many batches an epoch has, and steps a phase."""

    batches: int
    steps: int
    lone_sample: bool  # batches of one: BatchNorm has nothing to normalise by and uses its running statistics
    doubled: bool  # or, where it keeps none, sees the sample twice


def batch_plan(task: Task, net: Net, phase: Phase, n: int) -> Plan:
    """The last incomplete batch is kept; one of size 1 is skipped under BatchNorm (D9) unless it is all there is."""
    batches = math.ceil(n / task.batch_size)
    norms = [m for m in net.modules() if isinstance(m, BATCH_NORMS)]
    if norms and n > 1 and n % task.batch_size == 1 and batches > 1:
        batches -= 1
    lone = bool(norms) and min(n, task.batch_size) == 1
    return Plan(batches, phase.epochs * batches, lone, lone and any(m.running_mean is None for m in norms))


def gradient_weights(
    task: Task, net: Net, phases: Sequence[Phase], plan: Sequence[Plan], recipe: Recipe, lr: float
) -> Tree:
    """K_eff by parameter: what (w^t - w_k) / eta weighs in gradients; infinite where no phase trains it."""
    weights = Tree()
    for name, p in net.named_parameters():
        if recipe.share(name):
            total = sum(
                effective_steps(s.steps, task.momentum) * phase.lr(name) * (rate_of(phase, lr) / lr)
                for phase, s in zip(phases, plan, strict=True)
                if phase.trains(name)
            )
            weights[name] = torch.tensor(total or math.inf, device=p.device)
    return weights


def rate_of(phase: Phase, lr: float) -> float:
    return lr if phase.rate is None else phase.rate


def set_mode(net: Net, phase: Phase, lone_sample: bool) -> None:
    """Train mode only where something moves: a frozen extractor must not shift its running statistics."""
    moving = [name for name, _ in net.named_parameters() if phase.trains(name)]
    net.eval()
    net.body.train(any(name.startswith("body.") for name in moving))
    net.head.train(any(name.startswith("head.") for name in moving))
    for prefix, module in net.named_modules():
        if isinstance(module, BATCH_NORMS):
            own = [f"{prefix}.{key}" for key, _ in module.named_parameters(recurse=False)]
            if lone_sample or (own and not any(phase.trains(name) for name in own)):
                module.eval()


@contextmanager
def named_randomness(task: Task, purpose: str, t: int, k: int) -> Iterator[torch.Generator]:
    """The stream of one client's round; whatever draws from the global generator (dropout) is seeded beside it."""
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed_of(task.seed, "dropout", purpose, t, k))
        yield stream(task.seed, purpose, t, k)
