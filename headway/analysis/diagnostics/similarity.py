"""Linear CKA of all pairs of models, exact and in little memory: activations rest on the disk, sums are float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import NotApplicable
from headway.analysis.diagnostics.layers import Layer, activations
from headway.analysis.plotting.style import Floats
from headway.models.net import Net

ON_DISK = 4_000_000_000  # bytes of activations that lie on the disk at once; beyond, models are run once more
TILE = 512  # inputs a side of a block of the Gram matrices
WIDE = 1000  # columns from which X^T Y is not held in memory, whatever it costs


@dataclass(frozen=True)
class Stored:
    """One model's activations X [N, p] of one layer, as the float32 they were, in a file.

    Parts of it are read, not mapped: pages of a map would count as this process's memory.
    """

    path: Path
    mean: Tensor  # [p] float64
    n: int

    @property
    def width(self) -> int:
        return len(self.mean)

    def read(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start:stop with all inputs' column means taken off, float64."""
        stop = self.n if stop is None else min(stop, self.n)
        count = (stop - start) * self.width
        x = np.fromfile(self.path, np.float32, count, offset=start * self.width * 4).reshape(-1, self.width)
        return torch.from_numpy(x).double().sub_(self.mean)


def store(net: Net, x: Tensor, layers: Sequence[Layer], folder: Path, model: int) -> list[Stored]:
    """Run a model once; what its layers give goes to files, one batch in memory at a time."""
    paths = [folder / f"{i}-{model}" for i in range(len(layers))]
    sums = [torch.zeros(layer.width, dtype=torch.float64) for layer in layers]
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "wb")) for path in paths]
        for given in activations(net, x, layers):
            for layer, total, file in zip(layers, sums, files, strict=True):
                part = given.pop(layer.name).float()
                total += part.double().sum(0)
                file.write(part.contiguous().numpy().tobytes())
    return [Stored(path, total / len(x), len(x)) for path, total in zip(paths, sums, strict=True)]


def inner_products(models: Sequence[Stored]) -> Tensor:
    """<K, L>_F = ||X^T Y||_F^2 of all pairs of models, K = X X^T of centred X, [models, models] float64.

    Both sides are exact. X^T Y takes 2 N p^2 steps a pair, K about N^2 p a model: the cheaper one is taken.
    """
    n, width = models[0].n, models[0].width
    return by_columns(models) if width <= min(n / len(models), WIDE) else by_inputs(models)


def by_columns(models: Sequence[Stored]) -> Tensor:
    """||X^T Y||_F^2 pair by pair; two models' activations in memory."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for i, one in enumerate(models):
        x = one.read()
        for j in range(i, len(models)):
            y = x if i == j else models[j].read()
            total[i, j] = total[j, i] = (x.T @ y).square().sum()
    return total


def by_inputs(models: Sequence[Stored], tile: int = TILE) -> Tensor:
    """<K, L>_F block by block; one block of every model's K in memory."""
    n = models[0].n
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    starts = range(0, n, tile)
    for a in starts:
        for b in (b for b in starts if b >= a):
            blocks = torch.empty(len(models), min(tile, n - a), min(tile, n - b), dtype=torch.float64)
            for model, block in zip(models, blocks, strict=True):
                left = model.read(a, a + tile)
                torch.mm(left, (left if a == b else model.read(b, b + tile)).T, out=block)
            flat = blocks.flatten(1)
            total += (flat @ flat.T) * (1 if a == b else 2)  # K is symmetric: a block off the diagonal stands for two
    return total


def diagonals(models: Sequence[Stored], tile: int = TILE) -> Tensor:
    """The diagonals of K: squared lengths of the centred rows, [models, N]."""
    n = models[0].n
    return torch.stack(
        [torch.cat([m.read(a, a + tile).square().sum(1) for a in range(0, n, tile)]) for m in models],
    )


def plain(h: Tensor) -> Floats:
    """CKA = <K, L> / (|K| |L|) from all inner products, [models, models]; NaN where a layer tells inputs not apart."""
    size = h.diagonal().sqrt()
    found: Floats = (h / torch.outer(size, size)).clamp(max=1.0).numpy()
    return found


def debiased(h: Tensor, diagonal: Tensor) -> Floats:
    """CKA of the unbiased HSIC_1 (Song et al., 2012) from <K, L> and the diagonals of the same centred Gram matrices.

    Rows of a centred K sum to zero, so 1'K~1 = -tr K without its diagonal k, and 1'K~L~1 = k.l:
    n (n - 3) HSIC_1 = <K, L> - n/(n-2) k.l + tr K tr L / ((n-1)(n-2)).
    """
    n, trace = diagonal.shape[1], diagonal.sum(1)
    unbiased = h - n / (n - 2) * (diagonal @ diagonal.T) + torch.outer(trace, trace) / ((n - 1) * (n - 2))
    return plain(unbiased)


def groups(layers: Sequence[Layer], bytes_a_column: int, most: int = ON_DISK) -> Iterator[list[Layer]]:
    """The layers in order, as many at a time as the disk shall hold; always one."""
    group: list[Layer] = []
    for layer in layers:
        if group and bytes_a_column * sum(each.width for each in (*group, layer)) > most:
            yield group
            group = []
        group.append(layer)
    yield group


def similarities(
    models: Callable[[], Iterable[Net]],
    count: int,
    x: Tensor,
    layers: Sequence[Layer],
    on_disk: int = ON_DISK,
) -> Iterator[tuple[Layer, Floats, Floats]]:
    """Each layer with the plain and the debiased CKA of all pairs of the `count` models on inputs x."""
    for group in groups(layers, 4 * count * len(x), on_disk):
        with TemporaryDirectory(prefix="headway-cka-") as folder:
            stored = []
            for i, net in enumerate(models()):
                try:
                    stored.append(store(net, x, group, Path(folder), i))
                except OSError as error:
                    need = 4 * count * len(x) * sum(layer.width for layer in group)
                    raise NotApplicable(
                        f"cka cannot write {need / 1e9:.1f} GB of activations to {Path(folder).parent} while it runs "
                        f"({error.strerror}); free space there or set TMPDIR to a folder with more"
                    ) from error
            for layer, of_layer in zip(group, zip(*stored, strict=True), strict=True):
                h = inner_products(of_layer)
                yield layer, plain(h), debiased(h, diagonals(of_layer))
