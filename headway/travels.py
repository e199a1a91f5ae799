"""What travels between server and clients under a recipe, and what that tells of a client's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headway import rounds
from headway.client import first_client, train_client
from headway.data import Dataset
from headway.methods.guide import guide
from headway.recipes import Recipe
from headway.settings import Settings
from headway.state import Broadcast
from headway.task import build

UPDATE = "the model trained on the data: inputs can be rebuilt from small updates, label counts read off the last layer"


def travels(recipe: Recipe) -> dict[str, list[str]]:
    """What goes down, up, stays on the client, is fixed for all, and is asked once at the end; read off a real round
    on a tiny task, late enough that every warm-up is over."""
    classes = 3
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) % classes
    toy = Dataset("toy", x, y, x, y, classes, ("a", "b", "c"), (0.0,) * 8, (1.0,) * 8, scale=1.0)
    task = build(Settings(data="toy", model="mlp_small", clients=2, partition="iid"), dataset=toy)
    server = rounds.first_server(recipe, task)
    late = 10**6
    cast = Broadcast(late, server.w.only(recipe.share), server.stats, recipe.broadcast(server.kept))
    report, client = train_client(recipe, task, cast, first_client(recipe, task, cast, 0))
    net = task.net(recipe)
    later = recipe.absorb(server.kept, [report], num_clients=2)
    notes = {
        "down": [f"{p}.{key}" for p, note in recipe.broadcast(later).items() for key in note],
        "up": [f"{p}.{key}" for p, note in report.sent.items() for key in note],
        "stays": [f"{p}.{key}" for p, note in client.kept.items() for key in note],
    }
    x0, y0 = task.data[0]
    asked = recipe.survey(net, x0, y0) if recipe.acting("survey") else {}
    return {
        "down": parts(list(cast.w)) + notes["down"],
        "up": parts(list(report.w)) + notes["up"],
        "stays": parts(list(client.personal)) + notes["stays"],
        "frozen": [name for name in net.frozen() if not name.endswith(".scale")],
        "once": [f"{p}: {what_is_asked(a)}" for p, a in asked.items()],
    }


def what_is_asked(answer: dict[str, Any]) -> str:
    """A survey in words: its parts by name, or one answer a class."""
    if all(key.isdigit() for key in answer):
        return "count, mean and covariance of each class"
    sums = {"gram": "A and B", "e": "every feature", "y": "every label"}
    return " and ".join(sums.get(key, key) for key in answer)


def parts(names: Sequence[str]) -> list[str]:
    """Parameter names in the words of the net: the body as a whole, the head by tensor."""
    body = ["body"] if any(n.startswith("body.") for n in names) else []
    return body + [n for n in names if not n.startswith("body.")]


def leaves(recipe: Recipe) -> list[dict[str, str]]:
    """What a client sends, when, and what whoever reads it learns."""
    facts = travels(recipe)
    owners = {p.name for p in recipe.pieces}
    model = [what for what in facts["up"] if what.split(".")[0] not in owners]
    rows = [{"what": ", ".join(model), "when": "every round", "tells": UPDATE}] if model else []
    if facts["up"]:
        rows.append({"what": "n", "when": "every round", "tells": "how many samples the client has"})
        rows.append({"what": "loss", "when": "every round", "tells": "how well the model fits the client's data"})
    for what in (what for what in facts["up"] if what not in model):
        name, _, key = what.partition(".")
        rows.append({"what": what, "when": "every round", "tells": guide(name).reveals[key]})
    for what in facts["once"]:
        name = what.partition(":")[0]
        rows.append({"what": what, "when": "once, at the end", "tells": guide(name).reveals["survey"]})
    return rows
