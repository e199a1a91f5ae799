"""Layers in C++ that is compiled on this machine, for the processor's widest vectors.

They compute the same as torch, with sums in another order, or by another algorithm that rounds about as little.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headway.models.native import mlp, norm, pooled, thin, winograd
from headway.models.native.build import flags, has_wide_vectors

__all__ = ["PARTS", "has_wide_vectors", "ready", "sources"]
PARTS = {"winograd": winograd, "pooled": pooled, "norm": norm, "thin": thin, "mlp": mlp}


def sources() -> list[bytes]:
    """The C++ files and the compiler's flags: a part of the key under which measured times are cached."""
    folder = Path(__file__).parent
    files = [path.read_bytes() for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])]
    return [*files, " ".join(flags()).encode()]


def ready(names: Iterable[str] = tuple(PARTS)) -> None:
    """Compile these parts, side by side, so that an error occurs before the first round."""
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: PARTS[name].kernel(), names))
