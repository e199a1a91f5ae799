"""Retraining a classifier on features while the body rests: what every calibration of a trained model shares."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.models.net import Net


def retrain(
    net: Net, e: Tensor, y: Tensor, rng: torch.Generator, *, lr: float, epochs: int,
    batch: int = 64, momentum: float = 0.9, weight_decay: float = 1e-5,
) -> Net:  # fmt: skip
    """CE on embedded features e [n, d], from the classifier as it stands; only weight, bias and scale move."""
    names = ("weight", "bias", "scale")
    moving = [p for key, p in net.head.named_parameters() if key in names]
    sgd = torch.optim.SGD(moving, lr=lr, momentum=momentum, weight_decay=weight_decay)
    with torch.enable_grad():
        for _ in range(epochs):
            for i in torch.randperm(len(y), generator=rng).split(batch):
                i = i.to(e.device)
                sgd.zero_grad()
                F.cross_entropy(net.head.logits(e[i]), y[i]).backward()  # type: ignore[operator]
                sgd.step()
    return net
