"""The user's own networks: found by name, built, and cut into a body and a linear classifier."""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import ModelError, nearest


class Headless(nn.Module):
    """A user's network without its classifier, wrapped so that `dim` cannot clash with a name of its own."""

    def __init__(self, inner: nn.Module, dim: int) -> None:
        super().__init__()
        self.inner = inner
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.inner(x)  # [B, d]
        return h


def split(module: nn.Module, sample: Tensor) -> tuple[nn.Module, nn.Linear]:
    """Cuts a copy of the module before its last linear layer, the one whose output the module returns.

    The layer is found by watching a run on `sample` [B, *shape], since the order in which layers were
    registered need not be the order in which they run.
    """
    inner = copy.deepcopy(module)
    name = _last_linear(inner, sample)
    last = inner.get_submodule(name)
    assert isinstance(last, nn.Linear)
    body = Headless(inner, last.in_features)  # its `inner` is last when the module is a bare linear layer
    for parent in list(body.modules()):
        for key, child in list(parent._modules.items()):  # every name of the layer, should it have two
            if child is last:
                setattr(parent, key, nn.Identity())
    h = _run(body, sample)
    if h.shape != (len(sample), body.dim):
        raise ModelError(
            f"the layers before '{name}' of {_kind(module)} give features of shape {list(h.shape)}, not "
            f"[{len(sample)}, {body.dim}], one row an input; pool or flatten before the last linear layer"
        )
    fix(body)
    if not last.weight.requires_grad:
        raise ModelError(
            f"the last linear layer '{name}' of {_kind(module)} requires no gradient, and recipes decide what a "
            "classifier learns; leave it trainable, or use a recipe with a fixed one, such as fedavg+babu"
        )
    return body, last


def fix(body: nn.Module) -> None:
    """Parameters that require no gradient become buffers: trained, decayed and averaged by nobody."""
    for module in body.modules():
        for key, p in list(module._parameters.items()):
            if p is not None and not p.requires_grad:
                del module._parameters[key]
                module.register_buffer(key, p.detach().clone())


def _last_linear(module: nn.Module, sample: Tensor) -> str:
    """The name of the linear layer whose output, untouched, is what the module returns."""
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
    # the last layer that gave the returned tensor: a dropout in eval mode gives back the tensor it was given
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
    """One run in evaluation mode that leaves the module's modes and torch's random numbers as they were."""
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
        raise ModelError(f"{_kind(module)} returns a {type(out).__name__}; return the logits alone, one tensor")
    return out


def _kind(module: nn.Module) -> str:
    inner = module.inner if isinstance(module, Headless) else module
    return f"model {type(inner).__name__}"


def from_spec(spec: str) -> Callable[..., nn.Module]:
    """The class or function behind 'package.module:Name' or 'path/to/file.py:Name'."""
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
            f"'{name}' in '{source}' is a {type(found).__name__}; name a class, or a function that returns a network"
        )
    factory: Callable[..., nn.Module] = found
    return factory


def _networks(module: ModuleType) -> list[str]:
    """Names of what may make a network: the module's own classes of networks and functions, else those it imports."""

    def makes(thing: object) -> bool:
        return inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, nn.Module))

    public = {k: v for k, v in vars(module).items() if makes(v) and not k.startswith("_")}
    own = [k for k, v in public.items() if v.__module__ == module.__name__]
    return own or [k for k, v in public.items() if module.__name__.split(".")[0] == v.__module__.split(".")[0]]


def _is_factory(thing: object) -> bool:
    """A built network can be called too, but makes no network."""
    return callable(thing) and not isinstance(thing, nn.Module)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"model file '{path}' does not exist; paths start at {Path.cwd()}")
    full = path.resolve()
    # one name for each file, so that two files called net.py do not stand in for each other
    name = f"headway_user_{full.stem}_{hashlib.blake2b(str(full).encode(), digest_size=6).hexdigest()}"
    found = importlib.util.spec_from_file_location(name, full)
    assert found is not None  # true for every name that ends in .py
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # before it runs: dataclasses and pickle look there
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise ModelError(f"model file '{path}' cannot be imported: {type(e).__name__}: {e}") from e
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        raise ModelError(
            f"module '{name}' cannot be imported: {type(e).__name__}: {e}; "
            "for a file that is not installed write 'path/to/file.py:Name'"
        ) from e


def construct(factory: Callable[..., nn.Module], classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Calls the factory with those of classes, num_classes, shape, in_channels that its signature names.

    A factory with **kwargs and no name for the classes is given num_classes, as torchvision's models take it.
    """
    offer: dict[str, Any] = {
        "classes": classes,
        "num_classes": classes,
        "shape": tuple(shape),
        "in_channels": shape[0],
    }
    try:
        params = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some builtins show no signature
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
            f"a model may take {', '.join(offer)} and needs defaults for the rest"
        ) from e
    if not isinstance(module, nn.Module):
        raise ModelError(f"{call} returns a {type(module).__name__}; it must return a torch.nn.Module")
    return module
