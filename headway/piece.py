"""Piece: the hooks of one round, in the order of the round, each with its FedAvg default and its folding rule."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.errors import RecipeError
from headway.local import Batch, Local, Phase
from headway.tree import Tree, mean

if TYPE_CHECKING:
    from headway.models.net import Net
    from headway.recipes import Recipe
    from headway.state import Report

Hook = TypeVar("Hook", bound=Callable[..., Any])
HOOKS: dict[str, str] = {}  # hook name -> fold, in the order of the round; read off the marks below


def _mark(fold: str) -> Callable[[Hook], Hook]:
    def mark(hook: Hook) -> Hook:
        HOOKS[hook.__name__] = fold
        return hook

    return mark


one, chain, total, merge, own = (_mark(fold) for fold in ("one", "chain", "total", "merge", "own"))


class Grad(Protocol):
    """One forward and backward pass: the gradient of the recipe's loss over all parameters, personal ones too.

    `at`: at these parameters instead of the present ones, which are put back. `batch`: 0 is the step's own; 1, 2, ...
    are drawn from the client's data, the same one for the same number. `still`: running statistics do not move.
    """

    def __call__(self, at: Tree | None = None, batch: int = 0, still: bool = False) -> Tree: ...


def setting(
    default: Any,
    about: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A setting of a piece: its default, what it means, and what it may be."""
    limits = {"ge": ge, "gt": gt, "le": le, "lt": lt, "choices": tuple(choices)}
    return field(default=default, metadata={"about": about, **limits})


@dataclass(frozen=True)
class Piece:
    """What one paper adds to the round. Every hook left alone is FedAvg.

    The mark on a hook says how a recipe folds several pieces together:
      @one    a single piece decides                 @chain  each transforms what the last one gave
      @total  contributions are added up             @merge  settings are united; a clash is an error
      @own    each works on its own notes and messages
    """

    name: ClassVar[str]
    slot: ClassVar[str]  # base, head, loss, reg, share, post, personal or calib
    paper: ClassVar[str] = ""  # key of its entry in methods/references.bib
    neutral: ClassVar[dict[str, Any] | None] = None  # settings at which the piece changes nothing
    everyone: ClassVar[bool] = False  # all clients train every round, whatever the sampling
    pools: ClassVar[bool] = False  # all data belong to one client
    needs_server: ClassVar[bool] = False  # means nothing where clients never meet
    needs_global: ClassVar[bool] = False  # compares with the global body: means nothing where none is shared
    personal_as_received: ClassVar[bool] = False  # clients' own models need no further training
    also: ClassVar[dict[str, str]] = {}  # other names of settings, as papers and tables write them
    moves_classifier: ClassVar[bool] = False  # means nothing where the classifier is frozen
    holds: ClassVar[dict[str, str]] = {}  # the server's note -> the frozen tensor of the head it starts as
    counts_steps: ClassVar[bool] = False  # divides by K_eff, which takes the momentum to start at zero every round

    def proximal(self, name: str) -> float:
        """mu of a proximal term on this parameter: FedNova counts steps by it."""
        return 0.0

    def wants_seen(self) -> bool:
        """Whether `local.seen` is to hold the features of the last epoch."""
        return False

    def __post_init__(self) -> None:
        for f in fields(self):
            kinds = getattr(f.type, "__name__", str(f.type)).split(" | ")  # a class, or text such as int | None
            check_setting(self.name, f.name, getattr(self, f.name), f.metadata, whole="int" in kinds)

    # ---- the model: h = body(x), z = head(h)
    @merge
    def head(self) -> dict[str, Any]:  # kind, feat, weights, wnorm, scale, bias (heads.py)
        return {}

    @own
    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        """Raise RecipeError when this piece cannot work here."""

    @own
    def advise(self, recipe: Recipe, rounds: int, lr: float) -> list[str]:
        """Sentences for a user who may not mean this; raise RecipeError for what cannot work at these settings."""
        return []

    # ---- what is remembered: by the server from round 0, by a client from its first round
    @own
    def init_server(self, w: Tree, dim: int, classes: int) -> dict[str, Any]:
        return {}

    @own
    def init_client(self, w: Tree) -> dict[str, Any]:  # w: the shared parameters it receives first
        return {}

    # ---- server -> clients
    @one
    def share(self, name: str) -> bool:  # False: this parameter stays on its client
        return True

    @own
    def broadcast(self, kept: dict[str, Any]) -> dict[str, Any]:
        return {}

    @merge
    def equip(self, sent: dict[str, Any], counts: Tensor | None) -> Tree:
        """Tensors put into the net from what was sent, or from the client's class counts [C]; in training and in
        evaluation alike (counts is None for the global model)."""
        return Tree()

    # ---- on the client, before the first step
    @one
    def phases(self, epochs: int) -> list[Phase]:
        return [Phase(epochs)]

    @chain
    def pace(self, phase: Phase) -> Phase:  # how a phase of local training steps: its rate, momentum, decay
        return phase

    @own
    def prepare(self, local: Local) -> dict[str, Any]:  # teachers, priors, masks: read as local.ready
        return {}

    # ---- on the client, every step
    @chain
    def lift(self, h: Tensor, y: Tensor, local: Local) -> Tensor:  # features, in training only
        return h

    @one
    def criterion(self, batch: Batch, local: Local) -> Tensor:
        return F.cross_entropy(batch.z, batch.y)

    @total
    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return torch.zeros(())

    @one
    def gradient(self, grad: Grad, local: Local) -> Tree:
        return grad()

    @chain
    def correct(self, g: Tree, local: Local) -> Tree:  # before clipping and momentum
        return g

    # ---- on the client, after the last step
    @own
    def report(self, w: Tree, local: Local) -> tuple[dict[str, Any], dict[str, Any]]:
        return {}, local.kept  # (what I send, what I keep)

    @chain
    def upload(self, w: Tree, local: Local) -> Tree:  # what goes up as w_k, after `report` has seen w
        return w

    # ---- on the server
    @one
    def aggregate(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> Tree:
        return mean([r.w for r in reports], p)

    @own
    def absorb(self, kept: dict[str, Any], reports: Sequence[Report], num_clients: int) -> dict[str, Any]:
        return kept

    @one
    def server_step(self, w: Tree, w_new: Tree, kept: dict[str, Any]) -> tuple[Tree, dict[str, Any]]:
        return w_new, kept

    @chain
    def post(self, w: Tree, reports: Sequence[Report]) -> Tree:
        return w

    @own
    def trace(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> dict[str, float]:
        """Numbers of the round worth a line in the metrics; w is what the clients received."""
        return {}

    # ---- what is evaluated
    @one
    def shown(self, w: Tree, kept: dict[str, Any]) -> Tree:  # the global parameters that predict
        return w

    @one
    def own_model(self, kept: dict[str, Any]) -> Tree:  # a client's whole model, where it trains a second one
        return Tree()

    # ---- after the last round
    @own
    def survey(self, net: Net, x: Tensor, y: Tensor) -> dict[str, Any]:  # asked of every client, without training
        return {}

    @one
    def calibrate(self, net: Net, surveys: Iterable[dict[str, Any]], rng: torch.Generator) -> Net:
        return net  # on the server, on a copy of the global model; all surveys are taken in before the net is changed

    @one
    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        return []  # phases each client runs for itself; lr is the task's first learning rate


def acts(piece: Piece, hook: str) -> bool:
    """Whether the piece's class answers this hook itself."""
    return getattr(type(piece), hook) is not getattr(Piece, hook)


def check_setting(piece: str, name: str, value: Any, rule: Any, whole: bool = False) -> None:
    """Refuse a value outside its range, with the range in the message."""
    if value is None or isinstance(value, bool):
        return
    if choices := rule.get("choices"):
        if value not in choices:
            raise RecipeError(f"{piece}({name}={value}): {name} is one of {', '.join(choices)}")
        return
    if not isinstance(value, int | float):
        return
    compare = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = {key: rule[key] for key in compare if rule.get(key) is not None}
    fits = math.isfinite(value) and (isinstance(value, int) or not whole)
    if not fits or not all(compare[key](value, bound) for key, bound in bounds.items()):
        wanted = " and ".join(f"{signs[key]} {bound:g}" for key, bound in bounds.items())
        kind = "a whole number" if whole else "a finite number"
        raise RecipeError(f"{piece}({name}={value}): {name} must be {kind} {wanted}".rstrip())
