"""SGD on the cross-entropy of a multilayer perceptron, for client after client, in C++."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.models.native.build import library
from headway.models.native.calls import address

PADDING = 16  # numbers that the code may read after the last row
MOST_SAMPLES = 1024  # of a batch


@dataclass(frozen=True)
class Move:
    """m <- momentum m + g + decay w, then w <- w - rate m; a negative rate: the parameter stays as it is."""

    rate: float
    momentum: float
    decay: float


STAYS = Move(-1.0, 0.0, 0.0)


@dataclass(frozen=True)
class Layer:
    """A linear layer: where its weight [outputs, inputs] and its bias begin in a client's row, and how they move."""

    inputs: int
    outputs: int
    weight: int
    bias: int  # -1: it has none
    weight_move: Move
    bias_move: Move = STAYS


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "weight", "bias")),
        *((f"{part}_{name}", ctypes.c_float) for part in ("weight", "bias") for name in ("rate", "momentum", "decay")),
    )


def packed(layers: Sequence[Layer]) -> Any:
    def fields(layer: Layer) -> tuple[float, ...]:
        moves = (m for move in (layer.weight_move, layer.bias_move) for m in (move.rate, move.momentum, move.decay))
        return (layer.inputs, layer.outputs, layer.weight, layer.bias, *moves)

    return (_Layer * len(layers))(*(_Layer(*fields(layer)) for layer in layers))


def train(
    layers: Sequence[Layer], w: Tensor, start: Tensor | None, x: Tensor, y: Tensor, sizes: Tensor, order: Tensor,
    batch: int, epochs: int, threads: int = 1,
) -> Tensor:  # fmt: skip
    """Train the clients whose parameters are the rows of w [M, P], in place; returns their losses, [M].

    start [P]: the first parameters of all clients; None: they stand in w. x [N, d] and y [N] hold the samples of client
    after client; sizes [M]: how many each has. order: the positions of a client's samples in the order of each epoch,
    client after client. w has PADDING numbers of memory after it. No bit depends on the number of threads.
    """
    made, count = packed(layers), len(layers)
    numbers = kernel().mlp_numbers(ctypes.byref(made), count, batch) + w.shape[1] + PADDING
    losses, scratch = torch.empty(len(w)), torch.empty(threads * numbers)
    memory = map(address, (start, scratch, x, y, sizes, order, losses))
    kernel().mlp_train(ctypes.byref(made), count, address(w), w.shape[1], *memory, len(w), batch, epochs, threads)
    return losses


@cache
def kernel() -> Any:
    found = library("mlp.cpp")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.mlp_numbers.argtypes, found.mlp_numbers.restype = [pointer, number, number], number
    found.mlp_train.argtypes, found.mlp_train.restype = (
        [pointer, number, pointer, number, *[pointer] * 7, *[number] * 4],
        None,
    )
    return found
