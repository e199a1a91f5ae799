"""Net: a body and a head, h = body(x), z = head(h); and what methods and the loop need of it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headway.base.names import Names
from headway.base.tree import Tree
from headway.models import rewrite
from headway.models.heads import Head, linear_like
from headway.models.native.build import compiled_body

RUNNING, COUNTER = ("running_mean", "running_var"), "num_batches_tracked"
SECTIONS = ("body", "head")
WHOLE = 512  # samples of a part of a set, which one worker evaluates
COMPILED, NATIVE = "+compile", "+native"  # suffixes of a layout's name


class Normalise(nn.Module):
    """Normalises stored values to about zero mean and unit variance, for each channel (of tables: each feature)."""

    shift: Tensor
    factor: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], scale: float, dims: int):
        super().__init__()
        shape = (-1,) + (1,) * (dims - 1)  # images [C, H, W], tables [F]
        self.register_buffer("shift", torch.tensor(mean).view(shape) / scale, persistent=False)
        self.register_buffer("factor", scale / torch.tensor(std).view(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift).mul_(self.factor)  # [B, ...]: (x scale - mean) / std with only one new tensor


def normalises_by_batch(module: nn.Module) -> bool:
    """Whether a BatchNorm in the module keeps no running statistics, and so uses those of the batch in evaluation."""
    norms = (m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return any(m.running_mean is None for m in norms)


def moved_by_training(net: Net, shape: tuple[int, ...]) -> frozenset[str]:
    """Floating-point buffers of the body that a training pass changes, such as spectral norm's vectors or an average.

    They are sent and averaged like running means. A buffer that is not found here starts at its first value in every
    client. A body without candidates is not run.
    """
    candidates = [name for name, value in net.parts().local_buffers.items() if value.is_floating_point()]
    if not candidates:
        return frozenset()
    moved: set[str] = set()
    for make in (torch.zeros, torch.randn):  # not every network accepts noise, and zeros do not change every average
        trial = copy.deepcopy(net.body).cpu().train()  # on the CPU: an error on a GPU would break later calls there
        before = {name: value.cpu() for name, value in net.parts().local_buffers.items()}
        with torch.no_grad(), torch.random.fork_rng([]), contextlib.suppress(Exception):
            trial(make(2, *shape))
        after = dict(trial.named_buffers(prefix="body"))
        moved |= {name for name in candidates if not torch.equal(after[name], before[name])}
    return frozenset(moved)


def chunks(x: Tensor, batch: int = WHOLE) -> tuple[Tensor, ...]:
    """Parts of nearly equal size for evaluation. A single sample is repeated, as batch statistics need two values."""
    if len(x) == 1:
        x = x.repeat(2, *([1] * (x.ndim - 1)))
    return x.tensor_split(max(1, -(-len(x) // batch)))


@dataclass
class Parts:
    """A net's tensors and norms by name, and the body and head that they were read from."""

    body: nn.Module
    head: nn.Module
    thawed: int
    params: dict[str, nn.Parameter]
    running: dict[str, Tensor]  # buffers that training changes and the server averages
    local_buffers: dict[str, Tensor]  # the body's other buffers, which are at their first values when a client starts
    buffers: dict[str, Tensor]
    modules: list[tuple[str, nn.Module]]  # each with its section: body, head or rest
    plain_modes: bool  # no module overrides `train`, for example to keep its norms in eval mode
    norms: list[tuple[str, nn.modules.batchnorm._BatchNorm]]


class Net(nn.Module):
    """A body and a head: h = body(x) are the features, z = head(h) the logits."""

    def __init__(self, body: nn.Module, head: nn.Module, classes: int, inputs: nn.Module | None = None):
        super().__init__()
        self.body, self.head, self.classes = body, head, classes
        self.inputs = nn.Identity() if inputs is None else inputs
        self.channels_last = False  # memory layout of images and filters; faster for some bodies (tuning.py)
        self.chunk = WHOLE  # samples that are evaluated at once (training/defaults.py)
        self.compiled_batch = 0  # the size of batches that are trained by torch.compile; 0: none
        self.moving: frozenset[str] = frozenset()  # buffers of the body that training changes, like running means
        self._parts: Parts | None = None
        self._thawed = 0  # how many times `thaw` turned buffers into parameters

    @property
    def dim(self) -> int:
        """Features of the body, d."""
        return int(self.body.dim)  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        x = x.contiguous(memory_format=torch.channels_last) if self.channels_last else x
        compiled = len(x) == self.compiled_batch and self.body.training and torch.is_grad_enabled()
        h: Tensor = compiled_body()(self.body, x) if compiled else self.body(x)
        return h  # [B, d]

    def find_moving_buffers(self, shape: tuple[int, ...]) -> Net:
        """Find the buffers that training changes, for inputs of this shape; returns the net itself."""
        self.moving, self._parts = moved_by_training(self, shape), None
        return self

    def set_layout(self, layout: str, batch: int, shape: tuple[int, ...], folded: bool = False) -> Net:
        """Set the layout of images and filters, and return the net itself; results differ in their last bits.

        Only training on batches of size `batch` is compiled, as each shape has to be compiled separately. `folded`:
        predictions are made with normalisation folded into convolutions.
        """
        self.channels_last = layout.startswith("channels_last")
        self.compiled_batch = batch if layout.endswith(COMPILED) else 0
        if self.channels_last:
            self.body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if not self.moving:  # a plan could leave out what a pass changes
            rewrite.install(self.body, shape, native=layout.endswith(NATIVE), folded=folded)
        return self

    def teacher(self, w: Tree, x: Tensor) -> Teacher:
        """A copy of the net with parameters w that is not trained, for batches of x."""
        return Teacher(copy.deepcopy(self).load(w).eval().requires_grad_(False), x)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.features(x))
        return z  # [B, C]

    def personal(self, x: Tensor) -> Tensor:
        """Logits of the client's own prediction; those of `forward` if the head has only one classifier."""
        z: Tensor = self.head.personal(self.features(x))  # type: ignore[operator]
        return z  # [B, C]

    @torch.no_grad()
    def logits_of(self, x: Tensor, personal: bool = False) -> Tensor:
        """Logits of a whole set, [N, C], in chunks, without gradient; the net must be in eval mode."""
        predict = self.personal if personal else self
        return torch.cat([predict(part) for part in chunks(x, self.chunk)])[: len(x)]

    @torch.no_grad()
    def features_of(self, x: Tensor) -> Tensor:
        """Features of a whole set, computed in eval mode, without gradient, in chunks; the modes are restored."""
        modes = {m: m.training for m in self.modules()}
        self.eval()
        h = torch.cat([self.features(part) for part in chunks(x, self.chunk)])[: len(x)]
        for module, mode in modes.items():
            module.training = mode
        return h  # [n, d]

    @property
    def shared_head(self) -> Head:
        """The classifier that all clients share, also if the head has two."""
        head: Head = self.head.shared  # type: ignore[assignment]
        return head

    @property
    def head_spec(self) -> dict[str, Any]:
        """The options that the head was built with."""
        return dict(self.head.spec)  # type: ignore[arg-type]

    def embedding_of(self, x: Tensor) -> Tensor:
        """The input of the shared classifier's weight matrix for a whole set, [n, d]."""
        with torch.no_grad():
            return self.shared_head.embed(self.features_of(x))

    def open_classifier(self, power: float | None = None) -> Net:
        """Reduce the head to its shared classifier, for retraining; `power`: after Tukey's transform."""
        head, spec = self.shared_head, self.head_spec
        if head is not self.head:
            spec.pop("kind", None)
        head.power, head.spec = power, spec | {"power": power}
        self.head = head
        return self

    def set_classifier(self, weight: Tensor, feat: str, power: float | None = None, bias: Tensor | None = None) -> Net:
        """Replace the head by a linear classifier with these weights [C, d], without scale."""
        self.head = linear_like(self.shared_head, weight, feat, power, bias)
        return self

    def parts(self) -> Parts:
        """The net's tensors and modules; cached, as collecting them takes as long as a small training step."""
        p = self._parts
        if p is None or p.body is not self.body or p.head is not self.head or p.thawed != self._thawed:
            params, buffers = dict(self.named_parameters()), dict(self.named_buffers())
            named = dict(self.named_modules())
            running = {k: v for k, v in buffers.items() if k.rpartition(".")[2] in RUNNING or k in self.moving}
            modules = [(part if (part := k.partition(".")[0]) in SECTIONS else "rest", m) for k, m in named.items()]
            norms = [(k, m) for k, m in named.items() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            idle = {f"{k}.{COUNTER}" for k, m in norms if m.momentum is not None}  # counters that nothing reads
            local = {k: v for k, v in buffers.items() if k.startswith("body.") and k not in running.keys() | idle}
            plain = all(type(m).train is nn.Module.train for m in named.values() if m is not self)
            p = Parts(self.body, self.head, self._thawed, params, running, local, buffers, modules, plain, norms)
            self._parts = p
        return p

    @contextlib.contextmanager
    def params_read_as(self, params: Mapping[str, Tensor]) -> Iterator[None]:
        """`params()` and `trainable()` are these tensors, which stand in for the net's own (torch.func)."""
        own = self.parts()
        self._parts = replace(own, params={**own.params, **params})  # type: ignore[dict-item]
        try:
            yield
        finally:
            self._parts = own

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters by name."""
        return self.parts().params

    def params(self) -> Tree:
        return Tree(self.trainable())

    def stats(self) -> Tree:
        """BatchNorm's running means and variances, and a user's buffers of that kind; without step counters."""
        return Tree(self.parts().running).copy()

    def frozen(self) -> Tree:
        """The head's fixed tensors, which are the same for all clients and are not trained."""
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
        """Copy the trees' values into the net; a name that the net lacks is an error."""
        params, buffers = self.trainable(), self.parts().buffers
        for tree in trees:
            for name, value in tree.items():
                (params[name] if name in params else buffers[name]).copy_(value)
        return self

    def set_mode(self, *, body: bool, head: bool, rest: bool) -> Net:
        """Set train or eval mode of each section; faster than `train`, which writes to every module."""
        mode = {"body": body, "head": head, "rest": rest}
        if not self.parts().plain_modes:
            self.train(rest)
            self.body.train(body)
            self.head.train(head)
            return self
        for section, module in self.parts().modules:
            if module.training is not mode[section]:
                module.training = mode[section]
        return self

    def thaw(self, names: Names) -> Net:
        """Turn the frozen head tensors of these names into parameters, for personalisation."""
        self._thawed += 1
        for module_name, module in self.head.named_modules(prefix="head"):
            for key, value in list(module.named_buffers(recurse=False)):
                if names(f"{module_name}.{key}") and value.is_floating_point():
                    del module._buffers[key]
                    module.register_parameter(key, nn.Parameter(value.clone()))
        return self

    def tensors(self) -> Tree:
        """All tensors that a prediction needs: parameters, frozen tensors, running statistics."""
        return self.params().copy() | self.frozen() | self.fixed() | self.stats()

    def fixed(self) -> Tree:
        """The body's tensors that are not trained: a user's frozen parameters, and buffers of its state dict."""
        names = {f"body.{key}" for key in self.body.state_dict()} - self.trainable().keys()
        mine = {k: v for k, v in self.parts().buffers.items() if k in names and k.rpartition(".")[2] != COUNTER}
        return Tree({k: v for k, v in mine.items() if k not in self.parts().running}).copy()


class Rows(Protocol):
    """A batch that may have the positions of its samples among the client's."""

    @property
    def x(self) -> Tensor: ...
    @property
    def rows(self) -> Tensor | None: ...


class Teacher:
    """A net that is not trained. The features of x are computed once; batches with `rows` look theirs up."""

    def __init__(self, net: Net, x: Tensor):
        self.net = net
        self._x = None if normalises_by_batch(net) else x  # by batch, features depend on the other samples
        self._features: Tensor | None = None  # [n, d]

    def features(self, batch: Rows) -> Tensor:
        """[B, d]"""
        if self._x is None or batch.rows is None:
            return self.net.features(batch.x)
        if self._features is None:
            self._features = self.net.features_of(self._x)
        return self._features[batch.rows]

    def logits(self, batch: Rows) -> Tensor:
        """[B, C]"""
        z: Tensor = self.net.head(self.features(batch))
        return z
