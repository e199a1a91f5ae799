"""Training steps in C++ that is compiled on this machine; used if --tune finds that they are faster.

They compute the same as torch, with sums in another order. Evaluation always uses torch.
"""

from pathlib import Path

from torch import nn

from headway.models.native import pooled, thin
from headway.models.native.build import flags, has_wide_vectors

__all__ = ["applies", "install", "ready", "sources"]


def applies(body: nn.Module, batch: int) -> bool:
    """Whether the body has layers that are faster this way with this processor's vectors."""
    return has_wide_vectors() and bool(pooled.rows(body) or thin.layers(body, batch))


def install(body: nn.Module, batch: int) -> None:
    """Replace the body's layers; names, parameters and predictions stay the same."""
    for row in pooled.rows(body):
        row.__class__ = pooled.ROWS[type(row)]
    for layer in thin.layers(body, batch):
        layer.__class__ = thin.ThinLinear


def sources() -> list[bytes]:
    """The C++ files and the compiler's flags: a part of the key under which measured times are cached."""
    files = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.cpp"))]
    return [*files, " ".join(flags()).encode()]


def ready() -> None:
    """Compile the code, so that an error occurs before the first round."""
    pooled.kernel()
    thin.kernel()
