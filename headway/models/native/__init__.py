"""Layers in C++ that is compiled on this machine, for the processor's widest vectors.

They compute the same as torch, with sums in another order, or by another algorithm that rounds about as little.
"""

from pathlib import Path

from headway.models.native import norm, pooled, thin, winograd
from headway.models.native.build import flags, has_wide_vectors

__all__ = ["has_wide_vectors", "ready", "sources"]


def sources() -> list[bytes]:
    """The C++ files and the compiler's flags: a part of the key under which measured times are cached."""
    folder = Path(__file__).parent
    files = [path.read_bytes() for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")])]
    return [*files, " ".join(flags()).encode()]


def ready() -> None:
    """Compile the code, so that an error occurs before the first round."""
    for part in (winograd, pooled, norm, thin):
        part.kernel()
