"""Which layers of a body run as one call (united.py). A body that cannot be read (graph.py) keeps them one by one."""

from __future__ import annotations

import copy
import operator
from contextlib import suppress

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from headway.base.tree import stream
from headway.models.graph import Plan, Planned, United, chain, has_hooks, nodes, traced
from headway.models.native import pooled
from headway.models.united import Conv, ConvPool, Linear, NormThen

RELUS = {torch.relu, torch.relu_, F.relu, F.relu_}
SUMS = {operator.add, operator.iadd, torch.add}


def install(body: nn.Module, shape: tuple[int, ...], *, native: bool, folded: bool) -> None:
    """Let the body run by plans, of which `native` has native code and `folded` one for prediction.

    A plan that does not give what the body gives for noise, up to rounding, is not used.
    """
    training = for_training(body) if native else None
    predicting = for_prediction(body, native) if folded else None
    hooked = frozenset(name for name, m in body.named_modules() if has_hooks(m))
    training, predicting = (plan if agrees(body, plan, shape) else None for plan in (training, predicting))
    found = Planned(body, training, predicting, hooked)
    if found.training or found.predicting:
        found.install()


def agrees(body: nn.Module, plan: Plan | None, shape: tuple[int, ...]) -> bool:
    """Whether a copy of the body and the plan give the same for noise.

    In double precision, so that rounding, which deep networks amplify, does not hide what differs.
    """
    if plan is None:
        return False
    x = torch.randn((2, *shape), generator=stream("trial of a plan"))
    for kind in (torch.float64, torch.float32):  # a user's network may have numbers that are float32 and stay so
        with suppress(Exception):
            ours, own = (answer(body, used, plan.training, x.to(kind)) for used in (plan, None))
            limit = 1e-6 if kind == torch.float64 else 1e-3
            return all(close(a, b, limit) for a, b in zip(ours, own, strict=True))
    return False


def answer(body: nn.Module, plan: Plan | None, training: bool, x: Tensor) -> list[Tensor]:
    """What a copy of the body, or the plan, gives for x, and the copy's buffers after it."""
    trial = copy.deepcopy(body).cpu().to(x.dtype).train(training)
    with torch.random.fork_rng([]), torch.set_grad_enabled(training):
        torch.default_generator.manual_seed(0)
        made = (plan.bind(trial) if plan else trial)(x.clone())
    return [made.detach(), *(b.detach().to(x.dtype) for b in trial.buffers())]


def close(a: Tensor, b: Tensor, limit: float) -> bool:
    """Whether two results differ by no more than rounding."""
    return a.shape == b.shape and bool(((a - b).abs() <= limit * (b.abs() + b.abs().mean())).all())


class Rewriting:
    """A graph of a body, in which layers are replaced."""

    def __init__(self, graph: fx.Graph, body: nn.Module) -> None:
        self.graph, self.body = graph, body
        for node in graph.nodes:  # native code gives maps that are channels last, of which `view` refuses some shapes
            if node.op == "call_method" and node.target == "view" and not isinstance(node.args[1], torch.dtype):
                node.target = "reshape"

    @classmethod
    def of(cls, body: nn.Module, training: bool) -> Rewriting | None:
        """The graph of the body's forward pass; None if it cannot be read."""
        graph = traced(body, training)
        return None if graph is None else cls(graph, body)

    def layer(self, node: fx.Node, kind: type[nn.Module]) -> nn.Module | None:
        """The layer that the node calls, if it is of this very type, has no hooks and plain parameters."""
        if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
            return None
        found = self.body.get_submodule(str(node.target))
        plain = type(found) is kind and not has_hooks(found) and not getattr(found, "parametrizations", None)
        computed = any(isinstance(value, Tensor) for value in vars(found).values())  # by a hook, before every pass
        return found if plain and not computed else None

    def conv(self, node: fx.Node) -> nn.Conv2d | None:
        found = self.layer(node, nn.Conv2d)
        return found if isinstance(found, nn.Conv2d) and found.padding_mode == "zeros" else None

    def is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        return self.layer(node, nn.ReLU) is not None or (node.op == "call_function" and node.target in RELUS)

    def is_norm(self, node: fx.Node) -> bool:
        return self.layer(node, nn.BatchNorm2d) is not None

    def is_sum(self, node: fx.Node) -> bool:
        """A sum of two values."""
        if node.op == "call_method":
            named = node.target in ("add", "add_")
        else:
            named = node.op == "call_function" and node.target in SUMS
        return named and not node.kwargs and len(node.args) == 2 and all(isinstance(a, fx.Node) for a in node.args)

    def is_pool(self, node: fx.Node) -> bool:
        """A 2x2 max pool of stride 2, as a layer or as a function."""
        if (layer := self.layer(node, nn.MaxPool2d)) is not None:
            return pooled.is_pool(layer)
        if node.op != "call_function" or node.target not in (F.max_pool2d, torch.max_pool2d):
            return False
        names = ("input", *(key for key, _, _ in POOL))
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        plain = all(given.get(key, default) in allowed for key, default, allowed in POOL)
        return plain and not given.get("ceil_mode") and not given.get("return_indices")

    def put(self, row: list[fx.Node], united: United, *more: fx.Node) -> None:
        """Replace a row of nodes by one call, of the first node's input and `more`.

        It stands in the place of the first, whose input may change in place after it; with `more`, which may be
        computed later, in the place of the last.
        """
        with self.graph.inserting_after(row[-1 if more else 0]):
            made = self.graph.create_node("call_function", united, (row[0].args[0], *more), {}, "united")
        row[-1].replace_all_uses_with(made)
        for node in reversed(row):
            self.graph.erase_node(node)

    def with_sum(self, row: list[fx.Node]) -> tuple[list[fx.Node], fx.Node] | None:
        """The row with a sum and a ReLU after it, and the sum's other term; None if something changes in place."""
        found = chain(row[-1], self.is_sum, self.is_relu)
        if not found:
            return None
        other = next((a for a in found[0].args if a is not row[-1]), None)
        inside = between(row[0], found[-1])
        quiet = not any(self.in_place(n) for n in inside if n not in row and n not in found)
        return ([*row, *found], other) if quiet and isinstance(other, fx.Node) else None

    def in_place(self, node: fx.Node) -> bool:
        """Whether the call may change its input."""
        if node.op == "call_module":
            return bool(getattr(self.body.get_submodule(str(node.target)), "inplace", False))
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        changes = name.endswith("_") or name in ("setitem", "iadd", "isub", "imul", "itruediv")
        return changes or bool(node.kwargs.get("inplace"))


def between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    found, node = [], first
    while node is not last:
        found.append(node)
        node = node.next
    return found


TWO = (2, (2, 2), [2, 2])
POOL = (
    ("kernel_size", None, TWO), ("stride", 2, (*TWO, None)), ("padding", 0, (0, (0, 0))), ("dilation", 1, (1, (1, 1))),
)  # fmt: skip


def for_training(body: nn.Module) -> Plan | None:
    """The plan of a training pass with native code; None if the body cannot be read or has nothing to replace."""
    r = Rewriting.of(body, training=True)
    if r is None:
        return None
    for node in nodes(r.graph):
        if (conv := r.conv(node)) is None or not pooled.is_conv(conv):
            continue
        for steps in ((r.is_relu, r.is_pool), (r.is_pool,)):
            if found := chain(node, *steps):
                r.put([node, *found], ConvPool(str(node.target), relu=len(steps) == 2))
                break
    for node in nodes(r.graph):
        if r.conv(node) is not None:
            r.put([node], Conv(str(node.target), native=True))
        elif r.is_norm(node):
            name = str(node.target)
            if with_sum := r.with_sum([node]):
                r.put(with_sum[0], NormThen(name, relu=True), with_sum[1])
            elif found := chain(node, r.is_relu):
                r.put([node, *found], NormThen(name, relu=True))
            else:
                r.put([node], NormThen(name, relu=False))
        elif r.layer(node, nn.Linear) is not None:
            r.put([node], Linear(str(node.target)))
    return plan_of(r.graph, training=True)


def for_prediction(body: nn.Module, native: bool) -> Plan | None:
    """The plan of a pass in eval mode: normalisation folded into convolutions, sums and ReLUs in place."""
    r = Rewriting.of(body, training=False)
    if r is None:
        return None
    for node in nodes(r.graph):
        if native and r.layer(node, nn.Linear) is not None:
            r.put([node], Linear(str(node.target)))
        if r.conv(node) is None:
            continue
        row, name = [node], ""
        if (found := chain(node, r.is_norm)) and has_statistics(body.get_submodule(str(found[0].target))):
            row, name = [node, *found], str(found[0].target)
        if with_sum := r.with_sum(row):
            r.put(with_sum[0], Conv(str(node.target), name, relu=True, native=native), with_sum[1])
        elif relu := chain(row[-1], r.is_relu):
            r.put([*row, *relu], Conv(str(node.target), name, relu=True, native=native))
        elif native or name:
            r.put(row, Conv(str(node.target), name, native=native))
    return plan_of(r.graph, training=False)


def kernels(body: nn.Module) -> set[str]:
    """The parts of native code that the body's plans call."""
    plans = (for_training(body), for_prediction(body, native=True))
    return {name for plan in plans if plan for call in plan.united for name in call.kernels}


def layers_of(plan: Plan) -> dict[str, United]:
    """The calls of a plan by the name of the layer that each begins with."""
    return {call.first: call for call in plan.united}


def has_statistics(layer: nn.Module) -> bool:
    """Whether a normalisation has running statistics, which alone can be folded into a convolution."""
    return isinstance(layer.running_mean, Tensor) and isinstance(layer.running_var, Tensor)


def plan_of(graph: fx.Graph, training: bool) -> Plan | None:
    """The graph as a plan; None if nothing in it was united."""
    try:
        plan = Plan.of(graph, training)
    except ValueError:
        return None
    return plan if plan.united else None
