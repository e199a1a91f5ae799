"""What every calibration of a trained model shares: what it needs, an open classifier, and its retraining."""

from __future__ import annotations

from typing import Any

from headway.base.errors import RecipeError
from headway.core import F, Net, Piece, Recipe, Tensor, setting, torch
from headway.core.compatibility import is_frozen, refuse
from headway.methods.parts.sgd import SGD


def which_head() -> Any:
    """The setting of a calibration that says what it starts from."""
    about = "mean_of_personal: where heads are personal, calibrate their mean"
    return setting("server", about, choices=("server", "mean_of_personal"))


def needs(global_head: str) -> set[str]:
    """A server, and what the calibration starts from."""
    return {"server"} | ({"mean of personal tensors"} if global_head == "mean_of_personal" else set())


def check_calibration(piece: Piece, recipe: Recipe, global_head: str, replace_head: bool = True) -> list[str]:
    """A calibration retrains the global classifier: there must be one, and it must be free to move."""
    name = piece.name
    if is_frozen(recipe) and not replace_head:
        holder = recipe.owner("weights")
        refuse(recipe, name, holder, f"{name} retrains the classifier and {holder} freezes it",
               f"write {name}(replace_head=true) to put a trained one in its place")  # fmt: skip
    for other in recipe.acting("share"):
        hidden = not other.share("head.weight") or not other.share("body.weight")
        if hidden and not (global_head == "mean_of_personal" and other.slot == "share"):
            refuse(recipe, name, other.name, f"{name} calibrates the global classifier and {other.name} has none",
                   f"drop {name}, or write {name}(global_head=mean_of_personal)")  # fmt: skip
    return []


def open_head(net: Net, replace: bool, power: float | None = None) -> Net:
    """The net with a classifier that may be retrained; `power` makes Tukey's transform a part of it."""
    head = net.shared_head
    if head.weights == "trainable":
        return net.open_classifier(power)
    if not replace:
        raise RecipeError(
            "calibration: it retrains the classifier and this one is frozen; write replace_head=true, as in "
            "ccvr(replace_head=true), to put a trained linear one in its place"
        )
    return net.set_classifier(head.weight.detach() * head.scale, feat=head.feat, power=power, bias=head.bias)


def retrain(
    net: Net, e: Tensor, y: Tensor, rng: torch.Generator, *, lr: float, epochs: int,
    batch: int = 64, momentum: float = 0.9, weight_decay: float = 1e-5,
) -> Net:  # fmt: skip
    """CE on embedded features e [n, d], from the classifier as it stands; only weight, bias and scale move."""
    head = net.shared_head
    present, targets = y.unique(return_inverse=True)  # a class without features stays as it is
    absent = [c for c in range(net.classes) if c not in set(present.tolist())]
    first = {key: p.detach()[absent].clone() for key, p in head.named_parameters() if key in ("weight", "bias")}
    moving = [p for key, p in head.named_parameters() if key in ("weight", "bias", "scale")]
    sgd = SGD(moving, lr=lr, momentum=momentum, weight_decay=weight_decay)
    with torch.enable_grad():
        for _ in range(epochs):
            for i in torch.randperm(len(y), generator=rng).split(batch):
                i = i.to(e.device)
                F.cross_entropy(head.logits(e[i])[:, present], targets[i]).backward()
                sgd.step()
    with torch.no_grad():
        for key, rows in first.items():  # weight decay has touched them
            getattr(head, key)[absent] = rows
    return net
