"""One client's work, as pure functions of values: engines only decide where they run."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.heads import DualHead, TwinHead
from headway.local import Batch, Local, Phase, effective_steps, in_body, in_head, no_weights
from headway.models.net import Net
from headway.piece import Piece
from headway.recipes import FEDAVG, Recipe
from headway.state import Broadcast, Client, Report
from headway.steps import SGD, Alike
from headway.tree import Tree, seed_of, stream

if TYPE_CHECKING:
    from headway.task import Task


def first_client(recipe: Recipe, task: Task, cast: Broadcast, k: int) -> Client:
    """A client that has not taken part yet: its personal tensors at their first values, its notes fresh."""
    return Client(k, task.first_personal(recipe), recipe.init_client(cast.w))


def equipped(recipe: Recipe, task: Task, cast: Broadcast, client: Client, y: Tensor, fresh: bool = True) -> Net:
    """The net as the client holds it on receiving the broadcast."""
    net = task.net(recipe) if fresh else task.working_net(recipe).load(task.first_passing(recipe))
    net.load(cast.w, client.personal, cast.stats)
    if recipe.acting("equip"):
        net.load(recipe.equip(cast.sent, torch.bincount(y, minlength=task.classes)))
    return net


def train_client(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, apart_from_net: bool = True
) -> tuple[Report, Client]:
    """One client's round: a pure function of its arguments.

    A caller that copies the answer at once need not have it in memory of its own (`apart_from_net=False`).
    """
    x, y = task.data[client.id]
    net = equipped(recipe, task, cast, client, y, fresh=False)
    phases = recipe.phases(task.epochs)
    lr = task.lr(cast.round)
    plan = [batch_plan(task, net, phase, len(y)) for phase in phases]
    weights = partial(gradient_weights, task, net, phases, plan, recipe, lr)
    local = Local(
        net, cast.w, x, y, cast.round, lr, weights, recipe.share, kept=client.kept, sent=cast.sent, ready={},
        fit=partial(fit, recipe, task, cast, client.id, net),
    )  # fmt: skip
    local = local.prepared(recipe.prepare(local))

    momentum, loss = Tree(), math.nan
    with named_randomness(task, "train", cast.round, client.id) as rng:
        for phase, sizes in zip(phases, plan, strict=True):
            buffers, loss = run_phase(recipe, task, local, phase, sizes, rng, client.momentum)
            momentum = momentum | buffers

    local.memo.clear()  # what was known of the model as received
    w, stats = net.params(), net.stats()
    w = w.map(lambda v: v.detach().contiguous())  # whatever the net's layout: sums over w must not depend on it
    w = w.copy() if apart_from_net else w
    with torch.no_grad():
        shared = w.only(recipe.share)
        send, keep = recipe.report(shared, local)
        up = recipe.upload(shared, local)
    if apart_from_net:
        send, keep, up = apart([send, keep, up], net)
    report = Report(client.id, len(y), sum(s.steps for s in plan), up, stats.only(recipe.share), send, loss)
    personal = (w | stats).only(lambda name: not recipe.share(name))
    return report, Client(client.id, personal, keep, momentum if task.persist_momentum else Tree())


def apart(value: Any, net: Net) -> Any:
    """The same value without any tensor of the net's own: the next client trains in it."""
    parts = net.parts()
    own = {t.untyped_storage().data_ptr() for t in (*parts.params.values(), *parts.buffers.values())}

    def cut(v: Any) -> Any:
        if isinstance(v, Tensor):
            return v.detach().clone() if v.untyped_storage().data_ptr() in own else v
        if isinstance(v, dict):
            return type(v)({key: cut(part) for key, part in v.items()})
        return [cut(part) for part in v] if isinstance(v, list) else v

    return cut(value)


def fit(
    recipe: Recipe, task: Task, cast: Broadcast, k: int, net: Net, start: Tree, mu: float, plain: bool = False
) -> Tree:
    """A second model trained on the client's data from `start`, by the recipe's criterion, pulled to w^t by mu."""
    x, y = task.data[k]
    second = copy.deepcopy(net).load(cast.stats, start)
    pulled = Recipe((*(p for p in recipe.pieces if p.slot == "loss"), Pull(mu)))
    local = Local(second, cast.w, x, y, cast.round, task.lr(cast.round), no_weights, recipe.share, {}, {}, {})
    local = local.prepared(pulled.prepare(local))
    with torch.enable_grad(), named_randomness(task, "second model", cast.round, k) as rng:
        phase = Phase(task.epochs, momentum=0.0, weight_decay=0.0) if plain else Phase(task.epochs)
        run_phase(pulled, task, local, phase, batch_plan(task, second, phase, len(y)), rng, Tree())
    return second.params().copy() | second.stats()


@dataclass(frozen=True)
class Pull(Piece):
    """mu/2 ||w - w^t||^2, for a model trained beside the federation's."""

    name, slot = "pull", "reg"
    mu: float = 0.0

    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return self.mu / 2 * (local.w - local.w0).sq_norm()


def personal_net(
    recipe: Recipe, task: Task, cast: Broadcast, client: Client, phases: Sequence[Phase], fresh: bool = True
) -> Iterator[tuple[str, Net]]:
    """The client's own model, from the global one: first as received, then after each phase it trains for itself.

    Whoever only looks at it before the next client trains may have the working net (`fresh=False`).
    """
    x, y = task.data[client.id]
    net = equipped(recipe, task, cast, client, y, fresh).load(recipe.own_model(client.kept)).eval()
    yield "received", net
    if not phases or not len(y):
        return
    net.thaw(lambda name: any(phase.thaws(name) for phase in phases))
    lr = task.lr(cast.round)
    local = Local(net, cast.w, x, y, cast.round, lr, no_weights, recipe.share, client.kept, cast.sent, ready={})
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
    net, y = local.net, local.y
    set_mode(net, phase, lone_sample=plan.lone_sample)
    sgd = optimiser(task, phase, net, local.lr, momentum)
    loss_of = Loss(recipe, task, local, phase, fixed_features(task, local, phase))
    judge = recipe if phase.loss == "recipe" else FEDAVG
    watched = judge is not FEDAVG and (recipe.acting("gradient") or recipe.acting("correct"))
    direct = not watched and task.clip_norm is None
    losses: list[Tensor] = []
    left = plan.steps
    for _ in range(phase.epochs):
        losses = []
        local.seen.clear()
        for i in torch.randperm(len(y), generator=rng).split(task.batch_size)[: plan.batches][:left]:
            index = i.repeat(2) if plan.doubled else i
            left -= 1
            if direct:  # nobody looks at the gradient: it goes from autograd to the optimiser
                loss = loss_of(*loss_of.batch(index, rng))
                losses.append(loss.detach())
                sgd.step(torch.autograd.grad(loss, sgd.params, allow_unused=True))
                continue
            g = judge.gradient(Backward(loss_of, index, rng, losses), local)
            net.set_gradient(g | judge.correct(g.only(local.w0.__contains__), local))
            if task.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(sgd.params, task.clip_norm)
            sgd.step()
    last = float(torch.stack(losses).mean()) if losses else math.nan
    return sgd.buffers() if task.persist_momentum else Tree(), last


def fixed_features(task: Task, local: Local, phase: Phase) -> Tensor | None:
    """The client's features, computed once, when nothing that feeds the head moves and nothing changes the inputs."""
    net, known = local.net, local.features
    if moves_body(net, phase) or phase.awake:
        known.clear()
        return None
    if task.augment or any(m.running_mean is None for _, m in net.parts().norms):
        return None
    if not known:  # once for all phases in a row that leave the body alone
        known.append(net.features_of(local.x))
    return known[0]


def rows_of(x: Tensor) -> Tensor:
    rows: Tensor = x.rows  # type: ignore[attr-defined]
    return rows


def optimiser(task: Task, phase: Phase, net: Net, lr: float, momentum: Tree) -> SGD:
    """Fresh for every phase; parameters that step alike are one group, so that one fused kernel moves them."""
    rate = rate_of(phase, lr)
    decay = task.weight_decay if phase.weight_decay is None else phase.weight_decay
    groups: dict[tuple[float, float, float], Alike] = {}
    for name, p in net.trainable().items():
        if phase.trains(name):
            alike = (rate * phase.lr(name), momentum_of(task, phase, name), 0.0 if phase.plain(name) else decay)
            group = groups.setdefault(alike, Alike(*alike))
            group.params[name] = p
            if name in momentum:
                group.buffers[name] = torch.empty_like(p, requires_grad=False).copy_(momentum[name])
    return SGD(list(groups.values()))


class Loss:
    """The recipe's loss on batches of one phase. What does not change from step to step is looked up once."""

    def __init__(self, recipe: Recipe, task: Task, local: Local, phase: Phase, features: Tensor | None):
        self.recipe, self.task, self.local, self.phase = recipe, task, local, phase
        self.features = features  # [n_k, d], where this phase does not change them
        self.net, self.head = local.net, local.net.head
        two, whole = isinstance(self.head, (TwinHead, DualHead)), phase.loss == "recipe"
        self.plain = phase.loss == "ce" or (phase.loss == "criterion" and two)
        self.mine = self.head.personal if two else self.head  # the classifier that predicts for this client
        self.seen = whole and recipe.wants_seen()
        judge = recipe.decider("criterion")
        self.criterion, self.view = judge.criterion, local.of(judge)
        self.lifted, self.penalised = (whole and bool(recipe.acting(hook)) for hook in ("lift", "penalty"))
        self.amp = task.settings.amp

    def batch(self, index: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        local = self.local
        rows = index.to(local.x.device)
        x, y = local.x.index_select(0, rows), local.y.index_select(0, rows)
        if self.task.augment:
            x = self.task.augment(x, rng)
        else:
            x.rows = rows  # type: ignore[attr-defined]  # whoever knows all the features need not compute them
        return x, y

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.amp:
            return self._loss(x, y)
        with torch.autocast(self.task.device.type, dtype=torch.bfloat16):  # parameters and steps stay in float32
            return self._loss(x, y)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        recipe, local = self.recipe, self.local
        h = self.net.features(x) if self.features is None else self.features[rows_of(x)]  # [B, d]
        if self.seen:
            local.seen.append((h.detach(), y))
        if self.plain:
            return FEDAVG.criterion(Batch(x, y, h, self.mine(h)), local)  # type: ignore[operator]
        lifted = recipe.lift(h, y, local) if self.lifted else h
        batch = Batch(x, y, h, self.head(lifted), lifted)
        loss = self.criterion(batch, self.view)
        return loss + recipe.penalty(batch, local) if self.penalised else loss


@dataclass(frozen=True)
class Backward:
    """One forward and backward pass: the gradient of the recipe's loss over all parameters (piece.Grad)."""

    loss: Loss
    index: Tensor  # [B] the step's own batch
    rng: torch.Generator
    losses: list[Tensor]
    drawn: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __call__(self, at: Tree | None = None, batch: int = 0, still: bool = False) -> Tree:
        net = self.loss.net
        x, y = self.batch(batch)
        present = None if at is None else net.params().only(lambda name: name in at).copy()
        if at is not None:
            net.load(at)
        with statistics_at_rest(net) if still else nullcontext():
            loss = self.loss(x, y)
            net.zero_grad()
            loss.backward()
        self.losses.append(loss.detach())
        if present is not None:
            net.load(present)
        return Tree({k: g if self.loss.phase.trains(k) else torch.zeros_like(g) for k, g in net.gradient().items()})

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """The step's own, or a fresh one of the same size; each is drawn once."""
        if number not in self.drawn:
            fresh = self.index
            if number:
                fresh = torch.randperm(len(self.loss.local.y), generator=self.rng)[: len(fresh)]
                fresh = fresh.repeat(len(self.index) // len(fresh))  # a lone sample is doubled there too
            self.drawn[number] = self.loss.batch(fresh, self.rng)
        return self.drawn[number]


@contextmanager
def statistics_at_rest(net: Net) -> Iterator[None]:
    """Batch statistics normalise as in training; the running ones do not move."""
    norms = [m for _, m in net.parts().norms]
    rates = [m.momentum for m in norms]
    for m in norms:
        m.momentum = 0.0
    try:
        yield
    finally:
        for m, rate in zip(norms, rates, strict=True):
            m.momentum = rate


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
    norms = net.parts().norms
    if norms and n > 1 and n % task.batch_size == 1 and batches > 1:
        batches -= 1
    steps = phase.epochs * batches if phase.steps is None else min(phase.steps, phase.epochs * batches)
    lone = bool(norms) and min(n, task.batch_size) == 1
    return Plan(batches, steps, lone, lone and any(m.running_mean is None for _, m in norms))


def gradient_weights(
    task: Task, net: Net, phases: Sequence[Phase], plan: Sequence[Plan], recipe: Recipe, lr: float,
    pulled: bool = False,
) -> Tree:  # fmt: skip
    """K_eff by parameter: what (w^t - w_k) / eta weighs in gradients; infinite where no phase trains it.

    `pulled`: where proximal terms pull w_k back to w^t.
    """
    weights = Tree()
    for name, p in net.trainable().items():
        if recipe.share(name):
            total = 0.0
            for phase, s in zip(phases, plan, strict=True):
                if phase.trains(name):
                    rate = rate_of(phase, lr) * phase.lr(name)
                    pull = rate * recipe.proximal(name) if pulled else 0.0
                    steps = effective_steps(s.steps, momentum_of(task, phase, name), pull)
                    total += steps * rate / lr
            weights[name] = torch.tensor(total or math.inf, device=p.device)
    return weights


def momentum_of(task: Task, phase: Phase, name: str) -> float:
    if phase.plain(name):
        return 0.0
    return task.momentum if phase.momentum is None else phase.momentum


def rate_of(phase: Phase, lr: float) -> float:
    return lr if phase.rate is None else phase.rate


def moves_body(net: Net, phase: Phase) -> bool:
    """Whether a phase trains the body; of one without parameters, such as a lone dropout, whether it would."""
    names = [name for name in net.trainable() if in_body(name)] or ["body.weight"]
    return any(phase.trains(name) for name in names)


def set_mode(net: Net, phase: Phase, lone_sample: bool) -> None:
    """Train mode only where something moves: a frozen extractor must not shift its running statistics."""
    if phase.awake and not lone_sample:
        net.set_mode(body=True, head=True, rest=True)
        return
    head = any(phase.trains(name) for name in net.trainable() if in_head(name))
    net.set_mode(body=moves_body(net, phase), head=head, rest=phase.awake)
    for prefix, module in net.parts().norms:
        own = [f"{prefix}.{key}" for key, _ in module.named_parameters(recurse=False)]
        if lone_sample or (own and not any(phase.trains(name) for name in own)):
            module.eval()


@contextmanager
def named_randomness(task: Task, purpose: str, t: int, k: int) -> Iterator[torch.Generator]:
    """The stream of one client's round; whatever draws from the global generator (dropout) is seeded beside it."""
    devices = [task.device] if task.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seed = seed_of(task.seed, "dropout", purpose, t, k)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also writes a traceback for every absent device
        if devices:
            with torch.cuda.device(task.device):
                torch.cuda.manual_seed(seed)
        yield stream(task.seed, purpose, t, k)
