"""The user's own networks: import by name, construction, and splitting into a body and a linear classifier."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headway.base.errors import ModelError, nearest
from headway.base.python_files import module_of


class Headless(nn.Module):
    """A user's network without its classifier, wrapped so that `dim` cannot clash with one of its attributes."""

    def __init__(self, inner: nn.Module, dim: int) -> None:
        super().__init__()
        self.inner = inner
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.inner(x)  # [B, d]
        return h


def split(module: nn.Module, sample: Tensor) -> tuple[nn.Module, nn.Linear]:
    """Split a copy of the module before its last linear layer, the one whose output the module returns.

    The layer is found by running the module on `sample` [B, *shape] with hooks, as layers may run in another order than
    they were registered in.
    """
    inner = copy.deepcopy(module)
    name = _last_linear(inner, sample)
    last = inner.get_submodule(name)
    assert isinstance(last, nn.Linear)
    body = Headless(inner, last.in_features)  # its `inner` is last when the module is a bare linear layer
    for parent in list(body.modules()):
        for key, child in list(parent._modules.items()):  # all of them, as the layer may have several names
            if child is last:
                setattr(parent, key, nn.Identity())
    h = _run(body, sample)
    if h.shape != (len(sample), body.dim):
        raise ModelError(
            f"the layers before '{name}' of {_kind(module)} give features of shape {list(h.shape)}, not "
            f"[{len(sample)}, {body.dim}], one row per input; pool or flatten before the last linear layer"
        )
    fix(body)
    if not last.weight.requires_grad:
        raise ModelError(
            f"the last linear layer '{name}' of {_kind(module)} requires no gradient, but the recipe decides whether "
            "the classifier is trained; leave it trainable, or use a recipe with a fixed one, such as fedavg+babu"
        )
    return body, last


def fix(body: nn.Module) -> None:
    """Turn parameters that require no gradient into buffers, which are not trained, decayed or averaged."""
    for module in body.modules():
        for key, p in list(module._parameters.items()):
            if p is not None and not p.requires_grad:
                del module._parameters[key]
                module.register_buffer(key, p.detach().clone())


def _last_linear(module: nn.Module, sample: Tensor) -> str:
    """The name of the linear layer whose unchanged output the module returns."""
    calls: list[tuple[str, nn.Module, Any, int]] = []  # name, layer, its output, the version of that tensor

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(layer: nn.Module, _: Any, out: Any) -> None:
            calls.append((name, layer, out, out._version if isinstance(out, Tensor) else 0))

        return hook

    leaves = [(n, m) for n, m in module.named_modules() if not any(True for _ in m.children())]
    hooks = [m.register_forward_hook(watch(n)) for n, m in leaves]
    try:
        logits = _run(module, sample)
    finally:
        for handle in hooks:
            handle.remove()

    linear = [n for n, layer, *_ in calls if isinstance(layer, nn.Linear)]
    if not linear:
        raise ModelError(f"{_kind(module)} runs no linear layer; it must end in nn.Linear, the classifier")
    # the last layer that returned this very tensor: a dropout in eval mode returns its input
    makers = [c for c in calls if c[2] is logits and not isinstance(c[1], nn.Identity)]
    if not makers or not isinstance(makers[-1][1], nn.Linear) or logits._version != makers[-1][3]:
        kind = f" ({type(calls[-1][1]).__name__})" if not isinstance(calls[-1][1], nn.Linear) else ""
        raise ModelError(
            f"something{kind} follows the last linear layer '{linear[-1]}' of {_kind(module)}; return the logits"
        )
    name = makers[-1][0]
    if linear.count(name) > 1:
        raise ModelError(
            f"{_kind(module)} runs its last linear layer '{name}' {linear.count(name)} times; "
            "give the classifier a layer of its own"
        )
    return name


def _run(module: nn.Module, sample: Tensor) -> Tensor:
    """The module's output in eval mode; its modes and torch's random state are restored."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = module(sample)
    except Exception as e:
        raise ModelError(
            f"{_kind(module)} fails on an input of shape {list(sample.shape)}: {type(e).__name__}: {e}"
        ) from e
    finally:
        for m, mode in modes.items():
            m.training = mode
    if not isinstance(out, Tensor):
        kind = type(out).__name__
        raise ModelError(f"{_kind(module)} returns the type {kind}; return only the logits, as one tensor")
    return out


def _kind(module: nn.Module) -> str:
    inner = module.inner if isinstance(module, Headless) else module
    return f"model {type(inner).__name__}"


def from_spec(spec: str) -> Callable[..., nn.Module]:
    """The class or function that 'package.module:Name' or 'path/to/file.py:Name' names."""
    source, colon, name = spec.rpartition(":")
    if (file := spec.rstrip(":")).endswith(".py"):
        example = next(iter(_networks(_from_file(Path(file)))), None) if Path(file).is_file() else None
        raise ModelError(f"model={spec}: the name of a network is missing; write {file}:{example or 'Name'}")
    if not (colon and source and name):
        raise ModelError(f"model '{spec}' is not a spec; write 'package.module:Name' or 'path/to/file.py:Name'")
    module = _from_file(Path(source)) if source.endswith(".py") else _from_package(source)
    found = getattr(module, name, None)
    if found is None:
        known = _networks(module)
        fix = nearest(name, known) if known else "define a class or a function of that name"
        raise ModelError(f"model={spec}: '{source}' has no '{name}'; {fix}")
    if not _is_factory(found):
        raise ModelError(
            f"'{name}' in '{source}' is of type {type(found).__name__}; "
            "name a class, or a function that returns a network"
        )
    factory: Callable[..., nn.Module] = found
    return factory


def _networks(module: ModuleType) -> list[str]:
    """Names of functions and network classes: those that the module defines, else those that it imports."""

    def is_candidate(value: object) -> bool:
        return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, nn.Module))

    public = {k: v for k, v in vars(module).items() if is_candidate(v) and not k.startswith("_")}
    own = [k for k, v in public.items() if v.__module__ == module.__name__]
    return own or [k for k, v in public.items() if module.__name__.split(".")[0] == v.__module__.split(".")[0]]


def _is_factory(value: object) -> bool:
    """Whether it can be called to make a network; a network that is already built can be called too, but makes none."""
    return callable(value) and not isinstance(value, nn.Module)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"model file '{path}' does not exist; paths start at {Path.cwd()}")
    try:
        return module_of(path)
    except (Exception, SystemExit) as e:
        raise ModelError(f"model file '{path}' cannot be imported: {type(e).__name__}: {e}") from e


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        raise ModelError(
            f"module '{name}' cannot be imported: {type(e).__name__}: {e}; "
            "for a file that is not installed write 'path/to/file.py:Name'"
        ) from e


def body_of(shape: tuple[int, ...], bn: str, *, make: Callable[..., nn.Module]) -> nn.Module:
    """The body of a registered network; it does not depend on the number of classes, so two are used."""
    return split(construct(make, 2, shape), torch.zeros(2, *shape))[0]


def construct(factory: Callable[..., nn.Module], classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Call the factory with those of classes, num_classes, shape, in_channels that are parameters of it.

    A factory with **kwargs and no parameter for the classes gets num_classes, as torchvision's models do.
    """
    offer: dict[str, Any] = {
        "classes": classes,
        "num_classes": classes,
        "shape": tuple(shape),
        "in_channels": shape[0],
    }
    try:
        params = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        params = {}.values()
    keyword = {p.name for p in params if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = {k: v for k, v in offer.items() if k in keyword}
    if any(p.kind is p.VAR_KEYWORD for p in params) and not {"classes", "num_classes"} & keyword:
        given["num_classes"] = classes
    label = getattr(factory, "__name__", type(factory).__name__)
    call = f"{label}({', '.join(f'{k}={v}' for k, v in given.items())})"
    try:
        module = factory(**given)
    except Exception as e:
        raise ModelError(
            f"{call} fails: {type(e).__name__}: {e}; "
            f"a model may have parameters {', '.join(offer)}, and all others need defaults"
        ) from e
    if not isinstance(module, nn.Module):
        raise ModelError(f"{call} returns the type {type(module).__name__}; it must return a torch.nn.Module")
    return module
