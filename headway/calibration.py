"""What every calibration of a trained model shares: an open classifier, and its retraining while the body rests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import RecipeError
from headway.heads import Head, tukey
from headway.piece import setting

if TYPE_CHECKING:
    from headway.models.net import Net

__all__ = ["open_head", "retrain", "set_classifier", "shared_head", "spec_of", "tukey", "which_head"]


def which_head() -> Any:
    """The setting of a calibration that says what it starts from."""
    about = "mean_of_personal: where heads are personal, calibrate their mean"
    return setting("server", about, choices=("server", "mean_of_personal"))


def open_head(net: Net, replace: bool, power: float | None = None) -> Net:
    """The net with a classifier that may be retrained; `power` makes Tukey's transform a part of it."""
    head = shared_head(net)
    if head.weights != "trainable":
        if not replace:
            raise RecipeError(
                "calibration: it retrains the classifier and this one is frozen; write replace_head=true, as in "
                "ccvr(replace_head=true), to put a trained linear one in its place"
            )
        weight = head.weight.detach() * head.scale
        return set_classifier(net, weight, feat=head.feat, power=power, bias=head.bias)
    head.power = power
    head.spec = {k: v for k, v in spec_of(net).items() if k != "kind" or v == "nearest"} | {"power": power}  # type: ignore[assignment]
    net.head = head
    return net


def set_classifier(net: Net, weight: Tensor, feat: str, power: float | None = None, bias: Tensor | None = None) -> Net:
    """Put a linear classifier without scale on the same features."""
    head = shared_head(net)
    wide = head.feat == "proj+l2"
    spec = {"feat": head.feat if wide else feat, "bias": True, "proj_dim": weight.shape[1] if wide else None}
    raw = head.proj.in_features if wide else weight.shape[1]
    linear = Head(raw, len(weight), torch.Generator(), **spec).to(weight.device)  # type: ignore[arg-type]
    with torch.no_grad():
        linear.weight.copy_(weight)
        linear.bias.copy_(torch.zeros(()) if bias is None else bias)  # type: ignore[union-attr]
        if wide:
            linear.proj.load_state_dict(head.proj.state_dict())
    linear.power = power
    linear.spec = spec | {"power": power}  # type: ignore[assignment]
    net.head = linear
    return net


def spec_of(net: Net) -> dict[str, Any]:
    return dict(net.head.spec)  # type: ignore[arg-type]


def shared_head(net: Net) -> Head:
    """The global classifier, also where the head holds two."""
    head = getattr(net.head, "shared_part", net.head)
    assert isinstance(head, Head)
    return head


def retrain(
    net: Net, e: Tensor, y: Tensor, rng: torch.Generator, *, lr: float, epochs: int,
    batch: int = 64, momentum: float = 0.9, weight_decay: float = 1e-5,
) -> Net:  # fmt: skip
    """CE on embedded features e [n, d], from the classifier as it stands; only weight, bias and scale move."""
    head = shared_head(net)
    present, targets = y.unique(return_inverse=True)  # a class without features stays as it is
    absent = [c for c in range(net.classes) if c not in set(present.tolist())]
    first = {key: p.detach()[absent].clone() for key, p in head.named_parameters() if key in ("weight", "bias")}
    moving = [p for key, p in head.named_parameters() if key in ("weight", "bias", "scale")]
    sgd = torch.optim.SGD(moving, lr=lr, momentum=momentum, weight_decay=weight_decay)
    with torch.enable_grad():
        for _ in range(epochs):
            for i in torch.randperm(len(y), generator=rng).split(batch):
                i = i.to(e.device)
                sgd.zero_grad()
                F.cross_entropy(head.logits(e[i])[:, present], targets[i]).backward()
                sgd.step()
    with torch.no_grad():
        for key, rows in first.items():  # weight decay has touched them
            getattr(head, key)[absent] = rows
    return net
