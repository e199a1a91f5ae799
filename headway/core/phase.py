"""Phase and Step: a part of local training, and the update of each parameter in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.base.names import Names, everything, nothing


@dataclass(frozen=True)
class Step:
    """One local step of a parameter: m <- momentum m + g + decay w, then w <- w - rate m."""

    rate: float  # eta_t
    momentum: float
    decay: float  # weight decay
    pull: float = 0.0  # mu of the proximal terms mu/2 ||w - w^t||^2 in the loss; only step counts read it

    def plain(self) -> Step:
        """The same step without momentum and weight decay."""
        return replace(self, momentum=0.0, decay=0.0)


def unchanged(step: Step, name: str) -> Step:
    return step


@dataclass(frozen=True)
class Phase:
    """A part of local training: which parameters are trained, for how long, and how. Other modules are in eval mode.

    `step` receives the task's step, with the round's learning rate, and a parameter's name; it returns the step of
    that parameter.
    """

    epochs: int
    trains: Names = everything
    step: Callable[[Step, str], Step] = unchanged
    steps: int | None = None  # the largest number of steps
    stage: str = ""  # a name for the accuracy after this phase, if a paper reports it
    loss: str = "recipe"  # recipe: its whole loss and corrections; criterion: without penalties; ce: cross-entropy
    thaws: Names = nothing  # frozen tensors that become parameters of the client (personalisation only)
    train_mode: bool = False  # all modules are in train mode, also those that are not trained
