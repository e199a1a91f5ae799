"""Classifiers: one head of five independent choices, the two-headed ones, and the frames they may be fixed to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-12  # the smallest norm anything is divided by


class Head(nn.Module):
    """z = scale * W e + bias, with e = feat(h). Frozen tensors are buffers, so never trained, decayed or averaged."""

    weight: Tensor
    bias: Tensor | None
    scale: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        rng: torch.Generator,
        *,
        feat: str = "id",  # id | l2 | proj+l2
        weights: str = "trainable",  # a key of WEIGHTS
        wnorm: str = "none",  # none | unit: rows normalised in the forward pass
        scale: float | str = 1.0,  # a number, or "learnable"
        scale_start: float = 1.0,
        bias: bool = True,
        proj_dim: int | None = None,  # width after the projection; C by default
        init: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        bias_start: Tensor | None = None,  # of a user's own classifier
    ):
        super().__init__()
        self.feat, self.wnorm, self.weights = feat, wnorm, weights
        self.power: float | None = None  # Tukey's transform, where a calibration made it part of the classifier
        if feat == "proj+l2":
            proj_dim = proj_dim or classes
            self.proj = nn.utils.skip_init(nn.Linear, dim, proj_dim)
            self.proj.weight = nn.Parameter(uniform(dim, proj_dim, rng))
            self.proj.bias = nn.Parameter(uniform(dim, proj_dim, rng)[:, 0].clone())
            dim = proj_dim
        frozen = weights != "trainable"
        w = WEIGHTS[weights](dim, classes, rng)  # [C, d]
        if init is not None and weights in ("trainable", "frozen_random"):
            w = init(w, rng)
        self._put("weight", w, frozen)
        b = uniform(dim, classes, rng)[:, 0].clone() if bias else None
        own = b is not None and bias_start is not None and weights in ("trainable", "frozen_random")
        self._put("bias", bias_start.clone() if own and bias_start is not None else b, frozen)
        start = scale_start if scale == "learnable" else float(scale)
        self.scaled = scale == "learnable" or start != 1.0
        self._put("scale", torch.tensor(start), frozen=scale != "learnable")

    def _put(self, name: str, value: Tensor | None, frozen: bool) -> None:
        if frozen or value is None:
            self.register_buffer(name, value)
        else:
            self.register_parameter(name, nn.Parameter(value))

    def embed(self, h: Tensor) -> Tensor:
        """What the weight matrix sees, [B, d_raw] -> [B, d]; a dead feature h = 0 gives e = 0, not NaN."""
        if self.feat == "proj+l2":
            h = self.proj(h)  # [B, d]
        return h if self.feat == "id" else F.normalize(h, dim=1, eps=EPS)

    def logits(self, e: Tensor) -> Tensor:
        # frozen frames are unit by construction, and once thawed they are free to leave the sphere
        unit = self.wnorm == "unit" and self.weights == "trainable"
        w = F.normalize(self.weight, dim=1, eps=EPS) if unit else self.weight
        z = F.linear(e, w)  # [B, C]
        if self.scaled:
            z = self.scale * z
        return z if self.bias is None else z + self.bias

    def forward(self, h: Tensor) -> Tensor:
        e = self.embed(h)
        return self.logits(e if self.power is None else tukey(e, self.power))


def tukey(e: Tensor, power: float) -> Tensor:
    """T(e) = relu(e)^lambda, or log(relu(e)) at lambda = 0: Tukey's ladder makes features more Gaussian."""
    e = e.clamp(min=0)
    return e.clamp(min=1e-6).log() if power == 0 else e**power


class TwinHead(nn.Module):
    """The classifier received from the server beside the client's own."""

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        super().__init__()
        self.received = Head(dim, classes, rng, **spec)
        self.own = Head(dim, classes, rng, **spec)
        self.own.load_state_dict(self.received.state_dict())

    @property
    def shared_part(self) -> Head:
        return self.received

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.received(h)
        return z

    def personal(self, h: Tensor) -> Tensor:
        z: Tensor = self.own(h)
        return z


class NearestHead(Head):
    """A linear classifier to train by, and global prototypes P_c to predict by: z_c = -||h - P_c||^2 where known."""

    proto: Tensor
    known: Tensor

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        super().__init__(dim, classes, rng, **spec)
        self.register_buffer("proto", torch.zeros(classes, dim))  # [C, d]
        self.register_buffer("known", torch.zeros(classes))  # 1 where a prototype exists

    def personal(self, h: Tensor) -> Tensor:
        if not self.known.any():
            return self.forward(h)  # before the first round there is nothing to be near to
        gap = torch.cdist(h, self.proto).square()  # [B, C]
        return (-gap).masked_fill(self.known == 0, -math.inf)


class DualHead(nn.Module):
    """A generic classifier G for everybody and the client's own residual P: z_g = G(h), personal z_g + P(h)."""

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        super().__init__()
        self.generic = Head(dim, classes, rng, **spec)
        self.private = Head(dim, classes, rng, **spec)
        self.private.load_state_dict(self.generic.state_dict())

    @property
    def shared_part(self) -> Head:
        return self.generic

    def residual(self, h: Tensor) -> Tensor:
        z: Tensor = self.private(h)
        return z

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.generic(h)
        return z

    def personal(self, h: Tensor) -> Tensor:
        return self.forward(h) + self.residual(h)


class HyperHead(DualHead):
    """P is not kept but made, by a shared MLP, from the client's class frequencies: C -> d -> C d."""

    frequency: Tensor

    def __init__(self, dim: int, classes: int, rng: torch.Generator, **spec: Any):
        nn.Module.__init__(self)
        self.generic = Head(dim, classes, rng, **spec)
        self.inner = nn.Parameter(uniform(classes, dim, rng))  # [d, C]
        self.outer = nn.Parameter(uniform(dim, classes * dim, rng))  # [C d, d]
        self.register_buffer("frequency", torch.full((classes,), 1 / classes))

    def residual(self, h: Tensor) -> Tensor:
        made = self.outer @ torch.relu(self.inner @ self.frequency)  # [C d]
        return h @ made.view(len(self.frequency), -1).T  # [B, C]


def uniform(dim: int, rows: int, rng: torch.Generator) -> Tensor:
    """U(-1/sqrt(d), 1/sqrt(d)), [rows, d]: the usual start of a linear layer, weight and bias."""
    return (torch.rand(rows, dim, generator=rng) * 2 - 1) / math.sqrt(dim)


def simplex_etf(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """C unit vectors whose pairwise cosine is -1/(C-1), [C, d]; exists for d >= C-1."""
    ones = torch.full((classes, 1), 1.0, dtype=torch.float64)
    columns = torch.cat([ones, torch.eye(classes, dtype=torch.float64)], 1)
    basis = torch.linalg.qr(columns)[0][:, 1:classes]  # [C, C-1], orthonormal, each column sums to 0
    turn, r = torch.linalg.qr(torch.randn(dim, classes - 1, generator=rng, dtype=torch.float64))  # [d, C-1]
    turn = turn * r.diagonal().sign()  # the sign fixed, so the rotation is uniform and the same everywhere
    return (math.sqrt(classes / (classes - 1)) * basis @ turn.T).float()


def orthonormal(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """C orthonormal rows, [C, d]; exists for d >= C."""
    q, r = torch.linalg.qr(torch.randn(dim, classes, generator=rng, dtype=torch.float64))  # [d, C]
    return (q * r.diagonal().sign()).T.float().contiguous()


def spread_rows(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """Unit rows as far apart as they come, [C, d]: orthonormal for C <= d, else rows of orthonormal columns."""
    if classes <= dim:
        return orthonormal(dim, classes, rng)
    q, r = torch.linalg.qr(torch.randn(classes, dim, generator=rng, dtype=torch.float64))  # [C, d]
    return F.normalize(q * r.diagonal().sign(), dim=1).float()


WEIGHTS: dict[str, Callable[[int, int, torch.Generator], Tensor]] = {
    "trainable": uniform,
    "frozen_random": uniform,
    "frozen_etf": simplex_etf,
    "frozen_orth": orthonormal,
    "ema_proto": spread_rows,
}
KINDS: dict[str, Callable[..., nn.Module]] = {
    "single": Head,
    "nearest": NearestHead,
    "twin": TwinHead,
    "dual": DualHead,
    "hyper": HyperHead,
}


def build(spec: dict[str, Any], dim: int, classes: int, rng: torch.Generator, **native: Any) -> nn.Module:
    """The head a recipe asks for; what it leaves open (bias, first weights) is the model's own choice."""
    wanted = {**native, **spec}
    power = wanted.pop("power", None)
    head = KINDS[wanted.pop("kind", "single")](dim, classes, rng, **wanted)
    if isinstance(head, Head):
        head.power = power
    head.spec = dict(spec)  # type: ignore[assignment]  # what a saved model needs to be built again
    return head
