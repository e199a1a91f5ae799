"""What native functions have in common: addresses, the tensors that they take, derivatives of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

LAST = torch.channels_last


def address(t: Tensor | None) -> int:
    return 0 if t is None else t.data_ptr()


def is_plain(x: Tensor, dims: int = 4) -> bool:
    """Whether this is a tensor in float32 on the CPU, outside of autocast and of torch.func."""
    kind = x.ndim == dims and x.dtype == torch.float32 and x.device.type == "cpu"
    return kind and not torch.is_autocast_enabled("cpu") and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def differentiable(
    f: Callable[..., Tensor], inputs: Sequence[Tensor | None], gy: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of torch's own function at these inputs, which can be differentiated once more.

    A native backward pass calls it where its own gradients are to be differentiated (create_graph=True).
    """
    with torch.enable_grad():
        given = [None if t is None else t.view_as(t) for t in inputs]  # one input may have been computed from another
        wanted = [t for t, need in zip(given, needed, strict=True) if need and t is not None]
        found = iter(torch.autograd.grad(f(*given), wanted, gy, create_graph=True, allow_unused=True))
    return tuple(next(found) if need and t is not None else None for t, need in zip(inputs, needed, strict=True))
