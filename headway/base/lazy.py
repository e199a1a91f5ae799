"""torch, imported at its first use, so that modules which use it only inside functions do not slow down the start.

`from headway.base.lazy import F, Tensor, torch` replaces `import torch`, `torch.nn.functional as F` and
`from torch import Tensor`. `Tensor` is for annotations only; write `isinstance(value, torch.Tensor)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["F", "LazyModule", "Tensor", "torch"]


class LazyModule:
    """A module that is imported when one of its attributes is first read; each attribute is kept once it was read."""

    def __init__(self, name: str) -> None:
        self.__dict__["__name__"] = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self.__name__), name)
        self.__dict__[name] = value  # later reads find it there and do not call __getattr__
        return value

    def __repr__(self) -> str:
        return f"<lazy module {self.__name__}>"


if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional as F
else:
    torch = LazyModule("torch")
    F = LazyModule("torch.nn.functional")
    Tensor = Any
