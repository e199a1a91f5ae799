"""A body's forward pass as a list of calls, which torch.fx reads off, so that neighbouring layers can run as one.

Some bodies cannot be read: their forward pass depends on values, draws random numbers in Python, or changes attributes.
They run as they are written.
"""

from __future__ import annotations

import copy
import random
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, fx, nn

Run = Callable[..., Any]


class United:
    """Some layers of a body, by name, that run as one call."""

    kernels: ClassVar[tuple[str, ...]] = ()  # the parts of native code that it calls

    @property
    def first(self) -> str:
        """The name of its first layer."""
        raise NotImplementedError

    def covers(self, layer: nn.Module, x: torch.Size) -> bool:
        """Whether native code computes the first layer for inputs of this shape."""
        return False

    def bind(self, body: nn.Module) -> Run:
        """The call, for the layers of this body."""
        raise NotImplementedError

    def __call__(self, *values: Tensor) -> Tensor:
        raise TypeError("bind it to a body first")  # torch.fx takes only what can be called


class Tracer(fx.Tracer):
    """Modules with hooks are called as they are, so that their hooks run."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return has_hooks(m) or super().is_leaf_module(m, module_qualified_name)


def has_hooks(layer: nn.Module) -> bool:
    """Whether the layer has forward or backward hooks."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks)


def traced(body: nn.Module, training: bool) -> fx.Graph | None:
    """The calls of a forward pass in this mode; None if they cannot be read off faithfully."""
    before: tuple[Any, ...] = (random_states(), {})
    try:
        trial = copy.deepcopy(body).train(training)  # reading runs the forward pass's Python code once
        before = before[0], attributes(trial)
        graph = Tracer().trace(trial)
    except Exception:  # whatever a user's code raises where it meets a stand-in for a tensor
        return None
    finally:
        after = random_states()
        restore(before[0])
    return graph if same(before[0], after) and attributes(trial) == before[1] else None


def attributes(body: nn.Module) -> dict[str, Any]:
    """What a forward pass may change on its modules: plain values, and how often each tensor was written to."""
    found: dict[str, Any] = {}
    for name, module in body.named_modules():
        for key, value in vars(module).items():
            if not key.startswith("_"):
                found[f"{name}.{key}"] = value if isinstance(value, int | float | str | None) else id(value)
        own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        found |= {f"{name}.{key}": (id(t), t._version) for key, t in own}
    return found


def random_states() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # a user's code may draw from it


def restore(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    return torch.equal(a[0], b[0]) and a[1] == b[1] and repr(a[2]) == repr(b[2])


@dataclass(frozen=True)
class Slot:
    """The place of a value among those that a pass computes."""

    index: int


@dataclass(frozen=True)
class Call:
    """One call of a plan: what is called, its arguments with slots for values, where the result goes."""

    make: Callable[[nn.Module], Run]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: int
    dead: tuple[int, ...]  # slots that nothing reads after this call


@dataclass(frozen=True, eq=False)
class Plan:
    """The calls of a forward pass; the same for every copy of a body."""

    calls: tuple[Call, ...]
    slots: int
    united: tuple[United, ...]  # those of its calls that stand for several layers
    training: bool  # the mode in which it was read

    @classmethod
    def of(cls, graph: fx.Graph, training: bool) -> Plan:
        slot: dict[fx.Node, int] = {}
        for node in graph.nodes:
            if node.op != "output":
                slot[node] = len(slot)
        last = {used: node for node in graph.nodes for used in node.all_input_nodes}
        calls, united = [], []
        for node in graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            args, kwargs = (placed(part, slot) for part in (node.args, node.kwargs))
            dead = tuple(slot[used] for used in node.all_input_nodes if last[used] is node)
            calls.append(Call(maker(node), args, dict(kwargs), slot[node], dead))
            if isinstance(node.target, United):
                united.append(node.target)
        result = next(n for n in graph.nodes if n.op == "output").args[0]
        if not isinstance(result, fx.Node):
            raise ValueError("a body returns one tensor")
        calls.append(Call(lambda body: identity, (Slot(slot[result]),), {}, len(slot), ()))
        return cls(tuple(calls), len(slot) + 1, tuple(united), training)

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self  # it is immutable and names layers instead of holding them

    def bind(self, body: nn.Module) -> Callable[[Tensor], Tensor]:
        """The forward pass of this body by these calls."""
        bound = [(call.make(body), *simple(call), call.out, call.dead) for call in self.calls]
        count = self.slots

        def forward(x: Tensor) -> Tensor:
            values: list[Any] = [None] * count
            values[0] = x
            for run, one, args, kwargs, out, dead in bound:
                if one >= 0:
                    values[out] = run(values[one])
                else:
                    values[out] = run(*filled(args, values), **(filled(kwargs, values) if kwargs else {}))
                for index in dead:
                    values[index] = None
            result: Tensor = values[count - 1]
            return result

        return forward


def placed(part: Any, slot: dict[fx.Node, int]) -> Any:
    """The arguments with slots in the place of nodes."""
    return fx.node.map_arg(part, lambda node: Slot(slot[node]))  # type: ignore[arg-type, return-value]


def simple(call: Call) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
    """(slot, args, kwargs): the slot is that of the only argument, as most calls have one; -1 for all others."""
    one = len(call.args) == 1 and isinstance(call.args[0], Slot) and not call.kwargs
    return (call.args[0].index if one else -1), call.args, call.kwargs


def filled(part: Any, values: list[Any]) -> Any:
    """The arguments with values in the place of slots."""
    if isinstance(part, Slot):
        return values[part.index]
    if isinstance(part, tuple):
        return tuple(filled(v, values) for v in part)
    if isinstance(part, list):
        return [filled(v, values) for v in part]
    if isinstance(part, dict):
        return {k: filled(v, values) for k, v in part.items()}
    if isinstance(part, slice):
        return slice(filled(part.start, values), filled(part.stop, values), filled(part.step, values))
    return part


def identity(value: Any) -> Any:
    return value


def maker(node: fx.Node) -> Callable[[nn.Module], Run]:
    """A function (body) -> what the node calls."""
    target: Any = node.target
    if node.op == "call_module":
        return lambda body: body.get_submodule(target)
    if node.op == "get_attr":
        return lambda body: partial(attribute, weakref.ref(body), target)
    if node.op == "call_method":
        return lambda body: lambda value, *args, **kwargs: getattr(value, target)(*args, **kwargs)
    if isinstance(target, United):
        return target.bind
    return lambda body: target


def attribute(body: weakref.ref[nn.Module], name: str) -> Any:
    """The attribute of a dotted name, read anew in each pass: parameters may be replaced."""
    value: Any = body()
    for part in name.split("."):
        value = getattr(value, part)
    return value


class Planned:
    """Stands in the place of a body's `forward`: plans for training and for prediction, else the body's own.

    The body's own forward pass runs in all other modes, and once somebody has put hooks on its layers. The body refers
    to this object and not the other way round, so that both are freed at once.
    """

    def __init__(
        self, body: nn.Module, training: Plan | None, predicting: Plan | None, hooked: frozenset[str] = frozenset()
    ) -> None:
        self.body, self.training, self.predicting = weakref.ref(body), training, predicting
        self.hooked = hooked  # layers that had hooks when the plans were made: they are called as they are
        self.bound: dict[bool, Callable[[Tensor], Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        body, trains = self.body(), torch.is_grad_enabled()
        assert body is not None  # it calls this
        plan = self.training if trains else self.predicting
        if plan is None or body.training is not trains or any(map(has_hooks, self.layers)):
            own: Tensor = type(body).forward(body, x)
            return own
        if trains not in self.bound:
            self.bound[trains] = plan.bind(body)
        return self.bound[trains](x)

    @cached_property
    def layers(self) -> list[nn.Module]:
        """The layers on which hooks would be missed."""
        body = self.body()
        assert body is not None
        return [m for name, m in body.named_modules() if m is not body and name not in self.hooked]

    def __deepcopy__(self, memo: dict[int, Any]) -> Planned:
        return Planned(copy.deepcopy(self.body(), memo), self.training, self.predicting, self.hooked)  # type: ignore[arg-type]

    def install(self) -> None:
        body = self.body()
        assert body is not None
        body.__dict__["forward"] = self


def chain(node: fx.Node, *steps: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """The nodes after this one that satisfy the steps in turn, if each value is read by the next alone; else []."""
    found: list[fx.Node] = []
    for step in steps:
        users = list(node.users)
        if len(users) != 1 or not step(users[0]):
            return []
        node = users[0]
        found.append(node)
    return found


def nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes, also while they are replaced."""
    yield from list(graph.nodes)
