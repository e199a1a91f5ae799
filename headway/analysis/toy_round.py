"""A real round on a tiny task: what any recipe sends and keeps, a user's own pieces included."""

from __future__ import annotations

import torch

from headway.analysis.exchange import LATE, Exchange
from headway.core.recipe import Recipe
from headway.core.state import Broadcast
from headway.data import Dataset
from headway.training import rounds
from headway.training.client import first_client, train_client
from headway.training.settings import Settings
from headway.training.task import build


def toy_round(recipe: Recipe) -> Exchange:
    """The round of one client."""
    classes = 3
    x = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(24) % classes
    toy = Dataset("toy", x, y, x, y, classes, ("a", "b", "c"), (0.0,) * 8, (1.0,) * 8, scale=1.0)
    task = build(Settings(data="toy", model="mlp_small", clients=2, partition="iid"), dataset=toy)
    server = rounds.first_server(recipe, task)
    cast = Broadcast(LATE, server.w.only(recipe.share), server.stats, recipe.broadcast(server.kept))
    report, client = train_client(recipe, task, cast, first_client(recipe, task, cast, 0))
    return Exchange(server, cast, report, client, task.net(recipe), *task.data[0])
