"""Recipe: pieces folded into one, which is again a piece; the grammar `name(key=value)+name`; explain."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from headway import conflicts
from headway.errors import RecipeError
from headway.local import Batch, Local, Phase
from headway.models.net import Net
from headway.piece import HOOKS, Grad, Piece, acts
from headway.state import Notes, Report
from headway.tree import Tree


class _FedAvg(Piece):
    """Answers a hook that no piece of a recipe answers."""

    name, slot = "fedavg", "base"


FEDAVG = _FedAvg()
SINGLE_SLOTS = ("base", "loss", "share", "personal", "calib")


@dataclass(frozen=True)
class Recipe(Piece):
    """Pieces folded into one. A recipe answers every hook a piece answers, so the loop sees a single piece."""

    name: ClassVar[str] = "recipe"
    slot: ClassVar[str] = "recipe"
    pieces: tuple[Piece, ...]
    label: str = ""  # as the user wrote it

    def __post_init__(self) -> None:
        for slot in SINGLE_SLOTS:
            self._at_most_one(slot, [p for p in self.pieces if p.slot == slot])
        for hook, fold in HOOKS.items():
            if fold == "one":
                self._at_most_one(hook, self.acting(hook))
        self.head()

    def _at_most_one(self, what: str, pieces: Sequence[Piece]) -> None:
        if len(pieces) > 1:
            raise RecipeError(
                f"{self.names}: {pieces[0].name} and {pieces[1].name} both decide the {what}, "
                f"and a recipe has one; keep one of the two"
            )

    def __str__(self) -> str:
        """The whole recipe in text, settings included: enough to build it again."""
        return "+".join(spell(p) for p in self.pieces)

    @property
    def names(self) -> str:
        return "+".join(p.name for p in self.pieces)

    @property
    def title(self) -> str:
        return self.label or str(self)

    @cached_property
    def _acting(self) -> dict[str, list[Piece]]:
        return {hook: [p for p in self.pieces if acts(p, hook)] for hook in HOOKS}

    def acting(self, hook: str) -> list[Piece]:
        return self._acting[hook]

    def decider(self, hook: str) -> Piece:
        return next(iter(self.acting(hook)), FEDAVG)

    def piece(self, name: str) -> Piece | None:
        return next((p for p in self.pieces if p.name == name), None)

    def owner(self, key: str) -> str:
        """The piece that sets this of the head; `linear` where none does."""
        return next((p.name for p in self.acting("head") if key in p.head()), "linear")

    @property
    def trains_everyone(self) -> bool:
        return any(p.everyone for p in self.pieces)

    @property
    def pools_data(self) -> bool:
        return any(p.pools for p in self.pieces)

    # one
    def share(self, name: str) -> bool:
        return self.decider("share").share(name)

    def phases(self, epochs: int) -> list[Phase]:
        phases = self.decider("phases").phases(epochs)
        for p in self.acting("pace"):
            phases = [p.pace(phase) for phase in phases]
        return phases

    def proximal(self, name: str) -> float:
        return sum(p.proximal(name) for p in self.pieces)

    def wants_seen(self) -> bool:
        return any(p.wants_seen() for p in self.pieces)

    def personalise(self, epochs: int, lr: float) -> list[Phase]:
        return self.decider("personalise").personalise(epochs, lr)

    def criterion(self, batch: Batch, local: Local) -> Tensor:
        p = self.decider("criterion")
        return p.criterion(batch, local.of(p))

    def gradient(self, grad: Grad, local: Local) -> Tree:
        p = self.decider("gradient")
        return p.gradient(grad, local.of(p))

    def aggregate(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> Tree:
        piece = self.decider("aggregate")
        return piece.aggregate(w, [r.of(piece) for r in reports], p)

    def server_step(self, w: Tree, w_new: Tree, kept: Notes) -> tuple[Tree, Notes]:
        p = self.decider("server_step")
        w, mine = p.server_step(w, w_new, kept.get(p.name, {}))
        return w, kept | {p.name: mine} if mine else kept

    def shown(self, w: Tree, kept: Notes) -> Tree:
        p = self.decider("shown")
        return p.shown(w, kept.get(p.name, {}))

    def own_model(self, kept: Notes) -> Tree:
        p = self.decider("own_model")
        return p.own_model(kept.get(p.name, {}))

    def calibrate(self, net: Net, surveys: Iterable[dict[str, Any]], rng: torch.Generator) -> Net:
        p = self.decider("calibrate")
        return p.calibrate(net, (s.get(p.name, {}) for s in surveys), rng)

    # chain
    def lift(self, h: Tensor, y: Tensor, local: Local) -> Tensor:
        for p in self.acting("lift"):
            h = p.lift(h, y, local.of(p))
        return h

    def correct(self, g: Tree, local: Local) -> Tree:
        for p in self.acting("correct"):
            g = p.correct(g, local.of(p))
        return g

    def upload(self, w: Tree, local: Local) -> Tree:
        for p in self.acting("upload"):
            w = p.upload(w, local.of(p))
        return w

    def post(self, w: Tree, reports: Sequence[Report]) -> Tree:
        for p in self.acting("post"):
            w = p.post(w, [r.of(p) for r in reports])
        return w

    # total
    def penalty(self, batch: Batch, local: Local) -> Tensor:
        return sum((p.penalty(batch, local.of(p)) for p in self.acting("penalty")), torch.zeros(()))

    # merge
    def head(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        owner: dict[str, str] = {}
        for p in self.acting("head"):
            for key, value in p.head().items():
                if spec.setdefault(key, value) != value:
                    raise RecipeError(
                        f"{self.names}: {owner[key]} sets the head's {key} to {spec[key]!r} and {p.name} "
                        f"to {value!r}; keep one of the two"
                    )
                owner.setdefault(key, p.name)
        return spec

    def equip(self, sent: Notes, counts: Tensor | None) -> Tree:
        tensors = Tree()
        for p in self.acting("equip"):
            tensors = tensors | p.equip(sent.get(p.name, {}), counts)
        return tensors

    # own
    def check(self, recipe: Recipe, dim: int, classes: int) -> None:
        conflicts.check(recipe)
        for p in self.acting("check"):
            p.check(recipe, dim, classes)

    def advise(self, recipe: Recipe, rounds: int, lr: float) -> list[str]:
        own = [text for p in self.acting("advise") for text in p.advise(recipe, rounds, lr)]
        return own + conflicts.bounded_logits(recipe)

    def init_server(self, w: Tree, dim: int, classes: int) -> Notes:
        return {p.name: p.init_server(w, dim, classes) for p in self.acting("init_server")}

    def init_client(self, w: Tree) -> Notes:
        return {p.name: p.init_client(w) for p in self.acting("init_client")}

    def broadcast(self, kept: Notes) -> Notes:
        return {p.name: p.broadcast(kept.get(p.name, {})) for p in self.acting("broadcast")}

    def prepare(self, local: Local) -> Notes:
        return {p.name: p.prepare(local.of(p)) for p in self.acting("prepare")}

    def survey(self, net: Net, x: Tensor, y: Tensor) -> Notes:
        return {p.name: p.survey(net, x, y) for p in self.acting("survey")}

    def report(self, w: Tree, local: Local) -> tuple[Notes, Notes]:
        send, keep = {}, dict(local.kept)
        for p in self.acting("report"):
            send[p.name], keep[p.name] = p.report(w, local.of(p))
        return {k: v for k, v in send.items() if v}, {k: v for k, v in keep.items() if v}

    def trace(self, w: Tree, reports: Sequence[Report], p: Sequence[float]) -> dict[str, float]:
        traces = {q.name: q.trace(w, [r.of(q) for r in reports], p) for q in self.acting("trace")}
        return {f"{name}.{key}": value for name, notes in traces.items() for key, value in notes.items()}

    def absorb(self, kept: Notes, reports: Sequence[Report], num_clients: int) -> Notes:
        new = {
            p.name: p.absorb(kept.get(p.name, {}), [r.of(p) for r in reports], num_clients)
            for p in self.acting("absorb")
        }
        return kept | new


def spell(piece: Piece) -> str:
    """`moon(mu=5.0)`: the piece with the settings that differ from their defaults."""
    changed = [f"{f.name}={getattr(piece, f.name)}" for f in fields(piece) if getattr(piece, f.name) != f.default]
    return f"{piece.name}({','.join(changed)})" if changed else piece.name


def explain(recipe: Recipe) -> list[tuple[str, str, list[str]]]:
    """(hook, fold, names of the pieces that act there), in the order of the round; read off the classes."""
    return [(hook, fold, [p.name for p in recipe.acting(hook)]) for hook, fold in HOOKS.items() if recipe.acting(hook)]


def summary_line(piece: Piece | type[Piece]) -> str:
    """One line about a piece: its paper, from the first paragraph of its module's docstring."""
    cls = piece if isinstance(piece, type) else type(piece)
    module = inspect.getmodule(cls)
    return " ".join(((module and inspect.getdoc(module)) or "").split("\n\n")[0].split())


def idea_line(piece: Piece | type[Piece]) -> str:
    """What the piece does, in one line: the first of its class's docstring."""
    return (inspect.getdoc(piece if isinstance(piece, type) else type(piece)) or "").split("\n")[0]
