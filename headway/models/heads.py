"""Classifiers: a head with five independent options, a pair of such heads, and the class vectors they may be fixed to.

Every head has `shared` (the classifier that all clients share), `trained` (the one whose rows local training changes)
and `personal(h)` (the client's own prediction). Kinds that only one method needs are defined there (head_kinds.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.head_kinds import CLASS_VECTORS, HEAD_KINDS, class_vectors
from headway.models.transforms import tukey

EPS = 1e-12  # smallest norm that a vector is divided by


class Head(nn.Module):
    """z = scale * W e + bias, with e = feat(h). Frozen tensors are buffers: not trained, decayed or averaged."""

    weight: Tensor
    bias: Tensor | None
    scale: Tensor
    two_classifiers = False  # as its kind was registered with `head_kind`; set by `build`
    own_prediction = False  # whether `personal` may differ from `forward`
    spec: dict[str, Any]  # the options it was built with, by which a saved model is built again

    def __init__(
        self,
        dim: int,
        classes: int,
        rng: torch.Generator,
        *,
        feat: str = "id",  # id | l2 | proj+l2
        weights: str = "trainable",  # a key of CLASS_VECTORS
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
        self.moving = CLASS_VECTORS[weights].moving  # whether class vectors change from round to round
        self.power: float | None = None  # of Tukey's transform, if a calibration made it a part of the classifier
        if feat == "proj+l2":
            proj_dim = proj_dim or classes
            self.proj = nn.utils.skip_init(nn.Linear, dim, proj_dim)
            self.proj.weight = nn.Parameter(uniform(dim, proj_dim, rng))
            self.proj.bias = nn.Parameter(uniform(dim, proj_dim, rng)[:, 0].clone())
            dim = proj_dim
        frozen = weights != "trainable"
        w = CLASS_VECTORS[weights].make(dim, classes, rng)  # [C, d]
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
        """The input of the weight matrix, [B, d_raw] -> [B, d]; features h = 0 give e = 0 and not NaN."""
        if self.feat == "proj+l2":
            h = self.proj(h)  # [B, d]
        return h if self.feat == "id" else F.normalize(h, dim=1, eps=EPS)

    def logits(self, e: Tensor) -> Tensor:
        # frozen class vectors have unit norm by construction; thawed ones are not normalised
        unit = self.wnorm == "unit" and self.weights == "trainable"
        w = F.normalize(self.weight, dim=1, eps=EPS) if unit else self.weight
        z = F.linear(e, w)  # [B, C]
        if self.scaled:
            z = self.scale * z
        return z if self.bias is None else z + self.bias

    def forward(self, h: Tensor) -> Tensor:
        e = self.embed(h)
        return self.logits(e if self.power is None else tukey(e, self.power))

    @property
    def shared(self) -> Head:
        return self

    @property
    def trained(self) -> Head:
        return self

    def personal(self, h: Tensor) -> Tensor:
        z: Tensor = self(h)
        return z

    def predictor(self, personal: bool) -> nn.Module:
        """The module that computes the global or the personal prediction alone, for an exported model."""
        return self


class PairHead(nn.Module):
    """Two classifiers on the same features: one that all clients share, and the client's own.

    `names` are their module names, the shared one first. The client predicts by its own, or by the sum of both
    (`residual`). `trained` is the one that the main loss trains.
    """

    own_prediction = True
    spec: dict[str, Any]

    def __init__(
        self, dim: int, classes: int, rng: torch.Generator, names: tuple[str, str], *, residual: bool, **spec: Any
    ):
        super().__init__()
        self.names, self.residual = names, residual
        for name in names:
            self.add_module(name, Head(dim, classes, rng, **spec))
        self._part(1).load_state_dict(self.shared.state_dict())

    def _part(self, i: int) -> Head:
        part = getattr(self, self.names[i])
        assert isinstance(part, Head)
        return part

    @property
    def shared(self) -> Head:
        return self._part(0)

    @property
    def trained(self) -> Head:
        return self._part(0 if self.residual else 1)

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.shared(h)
        return z  # [B, C]

    def personal(self, h: Tensor) -> Tensor:
        z: Tensor = self._part(1)(h)
        return self.forward(h) + z if self.residual else z  # [B, C]

    def predictor(self, personal: bool) -> nn.Module:
        if not personal:
            return self.shared
        return OwnPrediction(self) if self.residual else self._part(1)


class OwnPrediction(nn.Module):
    """A module that computes a head's personal prediction."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, h: Tensor) -> Tensor:
        z: Tensor = self.head.personal(h)  # type: ignore[operator]
        return z


@class_vectors("frozen_random")
@class_vectors("trainable", moving=True)
def uniform(dim: int, rows: int, rng: torch.Generator) -> Tensor:
    """U(-1/sqrt(d), 1/sqrt(d)), [rows, d]: torch's initialisation of a linear layer, weight and bias."""
    return (torch.rand(rows, dim, generator=rng) * 2 - 1) / math.sqrt(dim)


@class_vectors("frozen_etf")
def simplex_etf(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """C unit vectors with pairwise cosine -1/(C-1), [C, d]; they exist for d >= C-1."""
    ones = torch.full((classes, 1), 1.0, dtype=torch.float64)
    columns = torch.cat([ones, torch.eye(classes, dtype=torch.float64)], 1)
    basis = torch.linalg.qr(columns)[0][:, 1:classes]  # [C, C-1], orthonormal, each column sums to 0
    turn, r = torch.linalg.qr(torch.randn(dim, classes - 1, generator=rng, dtype=torch.float64))  # [d, C-1]
    turn = turn * r.diagonal().sign()  # fixes the signs, so the rotation is uniform and equal on every machine
    return (math.sqrt(classes / (classes - 1)) * basis @ turn.T).float()


@class_vectors("frozen_orth")
def orthonormal(dim: int, classes: int, rng: torch.Generator) -> Tensor:
    """C orthonormal rows, [C, d]; they exist for d >= C."""
    q, r = torch.linalg.qr(torch.randn(dim, classes, generator=rng, dtype=torch.float64))  # [d, C]
    return (q * r.diagonal().sign()).T.float().contiguous()


def build(spec: dict[str, Any], dim: int, classes: int, rng: torch.Generator, **native: Any) -> nn.Module:
    """The head that a recipe's `spec` describes; options it does not give (bias, first weights) are the model's."""
    wanted = {**native, **spec}
    power, kind = wanted.pop("power", None), wanted.pop("kind", "single")
    head = Head(dim, classes, rng, **wanted) if kind == "single" else HEAD_KINDS[kind].make(dim, classes, rng, **wanted)
    if isinstance(head, Head):
        head.power = power
    else:
        head.two_classifiers = HEAD_KINDS[kind].two_classifiers  # type: ignore[assignment]
    head.spec = dict(spec)  # type: ignore[assignment]
    return head


def linear_like(head: Head, weight: Tensor, feat: str, power: float | None, bias: Tensor | None) -> Head:
    """A linear classifier with these weights [C, d], without scale, on the features of this head."""
    wide = head.feat == "proj+l2"
    spec = {"feat": head.feat if wide else feat, "bias": True, "proj_dim": weight.shape[1] if wide else None}
    raw = head.proj.in_features if wide else weight.shape[1]
    linear = Head(raw, len(weight), torch.Generator(), **spec).to(weight.device)  # type: ignore[arg-type]
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(torch.zeros(()) if bias is None else bias)  # type: ignore[union-attr]
        if wide:
            linear.proj.load_state_dict(head.proj.state_dict())
    linear.power, linear.spec = power, spec | {"power": power}
    return linear
