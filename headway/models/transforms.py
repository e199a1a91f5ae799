"""Transforms of features before the classifier."""

from __future__ import annotations

from headway.base.lazy import Tensor


def tukey(e: Tensor, power: float) -> Tensor:
    """T(e) = relu(e)^lambda, or log(relu(e)) for lambda = 0: Tukey's transform makes features more Gaussian."""
    e = e.clamp(min=0)
    return e.clamp(min=1e-6).log() if power == 0 else e**power
