"""Exchange: one round of a recipe and what came of it, and what is read off it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headway.core.arrived import Arrived
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Client, Report, Server

LATE = 10**6  # the round that is looked at: every warm-up is over
LR = 0.1
WHAT = ("down", "up", "stays", "frozen", "once")


class Exchange(NamedTuple):
    """A round with one client, real or with stand-ins for its tensors."""

    server: Server  # before the round
    cast: Broadcast
    report: Report
    client: Client  # after the round
    net: Any
    x: Any
    y: Any


def facts(recipe: Recipe, seen: Exchange) -> dict[str, list[str]]:
    """What goes down, up, stays on the client, is fixed for all, and is asked once at the end."""
    server, cast, report, client, net, x, y = seen
    arrived = Arrived(cast.w, [report], [1.0], num_clients=2, round=LATE, lr=LR, kept=server.kept, w_new=report.w)
    later = server.kept | recipe.absorb(arrived)
    asked = recipe.survey(net, x, y) if recipe.acting("survey") else {}
    return {
        "down": parts(cast.w) + keys(recipe.broadcast(later)),
        "up": parts(report.w) + keys(report.sent),
        "stays": parts(client.personal) + keys(client.kept),
        "frozen": [name for name in net.frozen() if not name.endswith(".scale")],
        "once": [f"{p}: {what_is_asked(answer)}" for p, answer in asked.items()],
    }


def keys(notes: dict[str, Any]) -> list[str]:
    """What notes hold, as `piece.key`."""
    return [f"{piece}.{key}" for piece, note in notes.items() for key in note]


def parts(names: Iterable[str]) -> list[str]:
    """Parameter names in the words of the net: the body as a whole, the head by tensor."""
    names = list(names)
    body = ["body"] if any(n.startswith("body.") for n in names) else []
    return body + [n for n in names if not n.startswith("body.")]


def what_is_asked(answer: dict[str, Any]) -> str:
    """A survey in words: its parts by name, or one answer a class."""
    if all(key.isdigit() for key in answer):
        return "count, mean and covariance of each class"
    sums = {"gram": "A and B", "e": "every feature", "y": "every label"}
    return " and ".join(sums.get(key, key) for key in answer)
