"""The features of many clients at once: a body whose layers take parameters with a leading dimension M."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from headway.models.graph import traced

Params = Mapping[str, Tensor]
# Layers that compute each number, or each sample, by itself, have no parameters and draw no random numbers.
PLAIN = (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.ELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus)
FUNCTIONS = {torch.relu, F.relu, torch.tanh, F.gelu, torch.sigmoid, F.silu}


@dataclass(frozen=True)
class Stacked:
    """A row of layers, by name, that take inputs [M, B, ...] and parameters [M, ...]."""

    layers: tuple[tuple[str, Callable[[nn.Module, Params, str, Tensor], Tensor]], ...]

    def __call__(self, body: nn.Module, params: Params, x: Tensor) -> Tensor:
        """The features [M, B, d]; `params` by the names of a net, such as body.fc.weight."""
        for name, run in self.layers:
            x = run(body, params, name, x)
        return x


def stacked(body: nn.Module) -> Stacked | None:
    """The body for many clients; None if it is not a row of known layers."""
    graph = traced(body, training=True)
    if graph is None:
        return None
    layers: list[tuple[str, Any]] = []
    before: fx.Node | None = None
    for node in graph.nodes:
        if node.op == "placeholder":
            before = node
            continue
        if node.all_input_nodes != [before] or node.args[0] is not before:
            return None
        if node.op == "output":
            return Stacked(tuple(layers))
        run = known(body, node)
        if run is None:
            return None
        layers.append((str(node.target), run))
        before = node
    return None


def known(body: nn.Module, node: fx.Node) -> Callable[..., Tensor] | None:
    """How a node of the graph runs for many clients; None if it is not known."""
    if node.op == "call_function":
        function: Any = node.target
        if function is torch.flatten:
            return flattened if node.args[1:] == (1,) and not node.kwargs else None
        return (lambda body, params, name, x: function(x)) if function in FUNCTIONS and len(node.args) == 1 else None
    if node.op == "call_method":
        if node.target == "flatten" and node.args[1:] == (1,) and not node.kwargs:
            return flattened
        return (lambda body, params, name, x: x.relu()) if node.target == "relu" else None
    if node.op != "call_module":
        return None
    layer = body.get_submodule(str(node.target))
    if type(layer) is nn.Linear:
        return linear
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return flattened
    if type(layer) is nn.LayerNorm and len(layer.normalized_shape) == 1:
        return layer_norm
    return (lambda body, params, name, x: body.get_submodule(name)(x)) if type(layer) in PLAIN else None


def flattened(body: nn.Module, params: Params, name: str, x: Tensor) -> Tensor:
    return x.flatten(2)  # [M, B, ...] -> [M, B, d]


def linear(body: nn.Module, params: Params, name: str, x: Tensor) -> Tensor:
    w, b = params[f"body.{name}.weight"], params.get(f"body.{name}.bias")  # [M, O, I], [M, O]
    flat = x.reshape(len(x), -1, x.shape[-1])
    z = torch.bmm(flat, w.mT) if b is None else torch.baddbmm(b[:, None], flat, w.mT)
    return z.view(*x.shape[:-1], z.shape[-1])


def layer_norm(body: nn.Module, params: Params, name: str, x: Tensor) -> Tensor:
    layer: Any = body.get_submodule(name)
    z = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    if layer.weight is None:
        return z
    form = (len(x), *[1] * (x.ndim - 2), -1)
    z = z * params[f"body.{name}.weight"].view(form)
    return z if layer.bias is None else z + params[f"body.{name}.bias"].view(form)
