"""A round with stand-ins for tensors: what headway's own pieces send and keep, by name, without torch.

The hooks run as they are. Whatever they compute is a stand-in again, so only the names in their notes remain. A hook
that needs to know a number stops with an error; the real round answers then (communication.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headway.analysis.exchange import LATE, LR, Exchange
from headway.base import lazy
from headway.base.tree import Tree
from headway.core.local import Local
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Client, Report, Server
from headway.models.head_kinds import head_tensors

BODY = ("body.fc1.weight", "body.fc1.bias")
CLASSES = 3
OPERATORS = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul neg invert and or eq ne lt le gt ge getitem"
)


class StandIn:
    """A tensor, or a function of torch: all that is computed from it is a stand-in again.

    It has no truth value and cannot be looped over: a branch on numbers is refused rather than guessed at.
    """

    requires_grad = True  # `mean` then adds term by term
    __iter__ = __contains__ = None
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return ANYTHING

    def __call__(self, *args: object, **options: object) -> Any:
        return ANYTHING

    def __bool__(self) -> bool:
        raise TypeError("a stand-in is neither true nor false")

    def __len__(self) -> int:
        return 1

    def __float__(self) -> float:  # a coefficient
        return 1.0

    def __enter__(self) -> None:  # torch.no_grad()
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def is_floating_point(self) -> bool:  # `mean` then does not ask where it lies in memory
        return False

    def tolist(self) -> list[int]:  # the classes a client has
        return [0]


def _operate(self: StandIn, *others: object) -> Any:
    return NotImplemented if any(isinstance(other, Tree) for other in others) else ANYTHING  # a tree adds by name


for _name in OPERATORS.split():
    setattr(StandIn, f"__{_name}__", _operate)
ANYTHING: Any = StandIn()


class StandInNet(StandIn):
    """A net whose tensors have names and nothing else."""

    classes = CLASSES

    def __init__(self, recipe: Recipe) -> None:
        self.tensors = dict.fromkeys(BODY, True)
        self.tensors |= {f"head.{name}": moves for name, moves in head_tensors(recipe.head()).items()}

    def params(self) -> Tree:
        return Tree({name: ANYTHING for name, moves in self.tensors.items() if moves})

    def frozen(self) -> Tree:
        return Tree({name: ANYTHING for name, moves in self.tensors.items() if not moves})

    def stats(self) -> Tree:
        return Tree()


class Replaced(lazy.LazyModule):
    """torch while hooks run without it."""

    def __getattribute__(self, name: str) -> Any:
        return ANYTHING


@contextmanager
def without_torch() -> Iterator[None]:
    """`torch` and `F` of headway.core answer with stand-ins in here. For a process that does not use torch meanwhile:
    other threads would meet them too."""
    modules: tuple[Any, ...] = (lazy.torch, lazy.F)
    try:
        for module in modules:
            module.__class__ = Replaced
        yield
    finally:
        for module in modules:
            module.__class__ = lazy.LazyModule


def stand_in_round(recipe: Recipe) -> Exchange:
    """The round of one client, in the order of training/client.py: received, prepared, reported."""
    net: Any = StandInNet(recipe)
    first = net.params().only(recipe.share)
    server = Server(LATE, net.params(), Tree(), recipe.init_server(first, net))
    cast = Broadcast(LATE, first, Tree(), recipe.broadcast(server.kept))
    local = Local(
        net, first, ANYTHING, ANYTHING, LATE, LR, recipe.share, kept=recipe.init_client(first), sent=cast.sent,
        step_weights=lambda pulled: first, fit=lambda start, under: start, last_epoch=(ANYTHING, ANYTHING),
    )  # fmt: skip
    local = local.prepared(recipe.prepare(local))
    answers: dict[str, Any] = recipe.report(first, local)  # type: ignore[assignment]
    sent = {name: dict(message) for name, (message, _) in answers.items()}
    kept = local.kept | {name: note for name, (_, note) in answers.items()}
    up = first
    for message in sent.values():
        up = message.pop("w", up)  # goes up in place of the shared parameters
    report = Report(0, 1, 1, up, Tree(), {name: message for name, message in sent.items() if message})
    personal = net.params().only(lambda name: not recipe.share(name))
    client = Client(0, personal, {name: note for name, note in kept.items() if note})
    return Exchange(server, cast, report, client, net, ANYTHING, ANYTHING)
