"""Net: h = body(x) are the features, z = head(h) the logits; and the views of it that methods use."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headway import native
from headway.local import Names
from headway.native.build import compiled_body
from headway.tree import Tree

RUNNING, COUNTER = ("running_mean", "running_var"), "num_batches_tracked"
ROOMS = ("body", "head")
COMPILED, NATIVE = "+compile", "+native"  # behind the name of a layout


class Normalise(nn.Module):
    """Stored values -> floats of about zero mean and unit spread, channel by channel (or feature by feature)."""

    shift: Tensor
    factor: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], scale: float, dims: int):
        super().__init__()
        shape = (-1,) + (1,) * (dims - 1)  # images [C, H, W], tables [F]
        self.register_buffer("shift", torch.tensor(mean).view(shape) / scale, persistent=False)
        self.register_buffer("factor", scale / torch.tensor(std).view(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift).mul_(self.factor)  # [B, ...]: (x scale - mean) / std in two steps, in one memory


def normalises_by_batch(module: nn.Module) -> bool:
    """Whether a BatchNorm inside keeps no running statistics and so looks at the batch in evaluation too."""
    norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return any(m.running_mean is None for m in norms)


def moved_by_training(net: Net, shape: tuple[int, ...]) -> frozenset[str]:
    """Floating buffers of the body that a pass in training changes: spectral norm's vectors, averages of a user's own.

    They travel and are averaged as running means are; one that is missed here begins anew with every client. A body
    without such buffers is not tried.
    """
    able = [name for name, value in net.parts().passing.items() if value.is_floating_point()]
    if not able:
        return frozenset()
    moved: set[str] = set()
    for make in (torch.zeros, torch.randn):  # not every network takes noise, and zeros do not move every mean
        tried = copy.deepcopy(net.body).cpu().train()  # what fails on a GPU would spoil it for all that follows
        before = {name: value.cpu() for name, value in net.parts().passing.items()}
        with torch.no_grad(), torch.random.fork_rng([]), contextlib.suppress(Exception):
            tried(make(2, *shape))
        after = dict(tried.named_buffers(prefix="body"))
        moved |= {name for name in able if not torch.equal(after[name], before[name])}
    return frozenset(moved)


def chunks(x: Tensor, batch: int = 512) -> tuple[Tensor, ...]:
    """Parts of nearly equal size for evaluation. A single sample is doubled: batch statistics need two values."""
    if len(x) == 1:
        x = x.repeat(2, *([1] * (x.ndim - 1)))
    return x.tensor_split(max(1, -(-len(x) // batch)))


@dataclass
class Parts:
    """A net's tensors and norms by name, and which net it was made of."""

    body: nn.Module
    head: nn.Module
    thawed: int
    params: dict[str, nn.Parameter]
    running: dict[str, Tensor]  # buffers that training moves and the server averages
    passing: dict[str, Tensor]  # the body's other buffers, which a client finds at their first values
    buffers: dict[str, Tensor]
    modules: list[tuple[str, nn.Module]]  # each with its room: body, head or rest
    plain_modes: bool  # no module has a `train` of its own, such as one that keeps its norms at rest
    norms: list[tuple[str, nn.modules.batchnorm._BatchNorm]]


class Net(nn.Module):
    """h = body(x) are the features, z = head(h) the logits."""

    def __init__(self, body: nn.Module, head: nn.Module, classes: int, inputs: nn.Module | None = None):
        super().__init__()
        self.body, self.head, self.classes = body, head, classes
        self.inputs = nn.Identity() if inputs is None else inputs
        self.channels_last = False  # images lie with their channels innermost: faster for some bodies (tuning.py)
        self.compiled_batch = 0  # the size of batches that train through torch.compile; 0: none
        self.moving: frozenset[str] = frozenset()  # buffers of the body that training moves as it does running means
        self._parts: Parts | None = None
        self._thawed = 0  # times that buffers became parameters
        self._all: Tensor | None = None  # inputs whose features a frozen net may keep
        self._table: Tensor | None = None  # [n, d]

    def features(self, x: Tensor) -> Tensor:
        rows = getattr(x, "rows", None) if self._all is not None else None
        if rows is not None:
            return self._remembered()[rows]
        x = self.inputs(x)
        x = x.contiguous(memory_format=torch.channels_last) if self.channels_last else x
        compiled = len(x) == self.compiled_batch and self.body.training and torch.is_grad_enabled()
        h: Tensor = compiled_body()(self.body, x) if compiled else self.body(x)
        return h  # [B, d]

    def tried_on(self, shape: tuple[int, ...]) -> Net:
        """The same net, which knows the buffers that training moves."""
        self.moving, self._parts = moved_by_training(self, shape), None
        return self

    def laid_out(self, layout: str, batch: int) -> Net:
        """The same net with its images and filters in this layout; the numbers differ in their last bits.

        Of a compiled one only training on whole batches is: every other shape would have to be compiled by itself.
        """
        self.channels_last = layout.startswith("channels_last")
        self.compiled_batch = batch if layout.endswith(COMPILED) else 0
        if self.channels_last:
            self.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if layout.endswith(NATIVE):
            native.install(self.body, batch)
        return self

    def remembering(self, x: Tensor) -> Net:
        """For a net that learns nothing: batches that know their rows in x are looked up, once all are computed."""
        if not normalises_by_batch(self):
            self._all, self._table = x, None
        return self

    def _remembered(self) -> Tensor:
        assert self._all is not None
        if self._table is None:
            self._table = self.features_of(self._all)
        return self._table

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.features(x))
        return z  # [B, C]

    def personal(self, x: Tensor) -> Tensor:
        """Logits of the client's own prediction, where the head has one."""
        z: Tensor = getattr(self.head, "personal", self.head)(self.features(x))
        return z  # [B, C]

    @torch.no_grad()
    def features_of(self, x: Tensor, batch: int = 512) -> Tensor:
        """Features of a whole set: eval mode, no graph, in pieces that fit in memory; the mode is put back."""
        modes = {m: m.training for m in self.modules()}
        self.eval()
        h = torch.cat([self.features(part) for part in chunks(x, batch)])[: len(x)]
        for module, mode in modes.items():
            module.training = mode
        return h  # [n, d]

    def embedding_of(self, x: Tensor) -> Tensor:
        """What the global classifier's weight matrix sees of a whole set, [n, d]."""
        head = getattr(self.head, "shared_part", self.head)
        with torch.no_grad():
            e: Tensor = head.embed(self.features_of(x))  # type: ignore[operator]
        return e

    def parts(self) -> Parts:
        """What is inside, looked up once: walking the modules costs as much as a small step."""
        p = self._parts
        if p is None or p.body is not self.body or p.head is not self.head or p.thawed != self._thawed:
            params, buffers = dict(self.named_parameters()), dict(self.named_buffers())
            named = dict(self.named_modules())
            running = {k: v for k, v in buffers.items() if k.rpartition(".")[2] in RUNNING or k in self.moving}
            modules = [(room if (room := k.partition(".")[0]) in ROOMS else "rest", m) for k, m in named.items()]
            norms = [(k, m) for k, m in named.items() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            idle = {f"{k}.{COUNTER}" for k, m in norms if m.momentum is not None}  # counters that nothing reads
            passing = {k: v for k, v in buffers.items() if k.startswith("body.") and k not in running.keys() | idle}
            plain = all(type(m).train is nn.Module.train for m in named.values() if m is not self)
            p = Parts(self.body, self.head, self._thawed, params, running, passing, buffers, modules, plain, norms)
            self._parts = p
        return p

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters by name."""
        return self.parts().params

    def params(self) -> Tree:
        return Tree(self.trainable())

    def stats(self) -> Tree:
        """BatchNorm's running means and variances, and a user's buffers of that kind; step counters stay at home."""
        return Tree(self.parts().running).copy()

    def frozen(self) -> Tree:
        """The head's fixed tensors: the same for everybody, trained by nobody."""
        return Tree({f"head.{k}": v for k, v in self.head.named_buffers()}).copy()

    def gradient(self) -> Tree:
        return Tree(
            {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in self.trainable().items()},
        )

    def set_gradient(self, g: Tree) -> None:
        for name, p in self.trainable().items():
            if name in g:
                p.grad = g[name].detach()

    @torch.no_grad()
    def load(self, *trees: Tree) -> Net:
        """Copy the trees' numbers in; a name the net does not have is an error."""
        params, buffers = self.trainable(), self.parts().buffers
        for tree in trees:
            for name, value in tree.items():
                (params[name] if name in params else buffers[name]).copy_(value)
        return self

    def set_mode(self, *, body: bool, head: bool, rest: bool) -> Net:
        """Train mode, or not, room by room; `train` would walk all modules and write to each."""
        mode = {"body": body, "head": head, "rest": rest}
        if not self.parts().plain_modes:
            self.train(rest)
            self.body.train(body)
            self.head.train(head)
            return self
        for room, module in self.parts().modules:
            if module.training is not mode[room]:
                module.training = mode[room]
        return self

    def thaw(self, names: Names) -> Net:
        """Turn the frozen head tensors of these names into parameters: personalisation may move them."""
        self._thawed += 1
        for module_name, module in self.head.named_modules(prefix="head"):
            for key, value in list(module.named_buffers(recurse=False)):
                if names(f"{module_name}.{key}") and value.is_floating_point():
                    del module._buffers[key]
                    module.register_parameter(key, nn.Parameter(value.clone()))
        return self

    def tensors(self) -> Tree:
        """All that a prediction needs: parameters, frozen tensors, running statistics."""
        return self.params().copy() | self.frozen() | self.fixed() | self.stats()

    def fixed(self) -> Tree:
        """The body's tensors that nobody trains: a user's frozen parameters, and buffers that are part of its state."""
        names = {f"body.{key}" for key in self.body.state_dict()} - self.trainable().keys()
        mine = {k: v for k, v in self.parts().buffers.items() if k in names and k.rpartition(".")[2] != COUNTER}
        return Tree({k: v for k, v in mine.items() if k not in self.parts().running}).copy()
