"""Watching (--watch): figures measured on the models after every evaluated round, for curves over rounds.

They are computed in a separate net and without random numbers, so that a watched run has the bits of an unwatched one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.base.names import in_head
from headway.base.strict_json import strict
from headway.base.tree import Tree
from headway.core.recipe import Recipe
from headway.core.state import Broadcast, Report, Server, numbers
from headway.metrics.collapse import collapse_error
from headway.metrics.geometry import class_means, embedded, known_mean, pairs, rows_of
from headway.metrics.local_statistics import LocalStatistics, mean_norms, sample_norms, statistics_of
from headway.metrics.prototypes import consistency_figures
from headway.models.heads import Head
from headway.models.net import Net
from headway.runs.watched import WATCHED
from headway.training import rounds
from headway.training.client import first_client

if TYPE_CHECKING:
    from headway.engines.store import ClientStore
    from headway.training.task import Task

MOST_TESTS = 2000  # test samples of a watched round
MOST_CLIENTS = 20
MOST_OWN = 1000  # training samples of a client, for its prototypes
COLUMNS = 2**18  # parameters of every client converted to float64 at a time


@dataclass(frozen=True)
class Round:
    """The models of a watched round; what is derived from them is computed at most once."""

    watcher: Watcher
    server: Server
    cast: Broadcast
    reports: Sequence[Report]  # of the clients that are measured

    @cached_property
    def net(self) -> Net:
        return rounds.global_net(self.server, self.watcher.recipe, self.watcher.task)

    @cached_property
    def head(self) -> Head:
        """The global classifier, or the mean of the clients' own where none is shared."""
        recipe, task, store = self.watcher.recipe, self.watcher.task, self.watcher.store
        if recipe.share("head.weight"):
            return self.net.shared_head
        return rounds.global_net(rounds.with_mean_of_personal(self.server, store), recipe, task).shared_head

    @cached_property
    def clients(self) -> list[LocalStatistics]:
        return [self.watcher.statistics(self.cast, report) for report in self.reports]


class Watcher:
    """Measures the models of a round. `names` are some of WATCHED."""

    def __init__(self, recipe: Recipe, task: Task, store: ClientStore, names: Sequence[str]):
        self.recipe, self.task, self.store, self.names = recipe, task, store, names
        self.has_global = rounds.has_global_model(recipe, task)
        self.stopped = False

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """The global test set, or evenly chosen samples of it."""
        d = self.task.dataset
        rows = torch.from_numpy(evenly(len(d.y_test), MOST_TESTS))
        return d.x_test[rows].to(self.task.device), d.y_test[rows].to(self.task.device)

    @cached_property
    def net(self) -> Net:
        """The net that local models are loaded into; it is never trained."""
        return self.task.net(self.recipe)

    def row(
        self, server: Server, cast: Broadcast, reports: Sequence[Report], say: Callable[[str], None]
    ) -> dict[str, Any]:
        """The round's row for JSON; an exception ends watching with one line, and the run goes on."""
        if self.stopped:
            return {}
        try:
            found: dict[str, Any] = strict(self.look(server, cast, reports))
            return found
        except Exception as error:
            self.stopped = True
            why = " ".join(f"{type(error).__name__}: {error}".split())
            say(f"warning: watching stopped at round {server.round} and the run goes on ({why[:300]})")
            return {}

    @torch.no_grad()
    def look(self, server: Server, cast: Broadcast, reports: Sequence[Report]) -> dict[str, Any]:
        """The round's row: numbers by name, and those of single clients by their id."""
        chosen = [reports[i] for i in evenly(len(reports), MOST_CLIENTS)]
        seen = Round(self, server, cast, chosen)
        row: dict[str, Any] = {"round": server.round}
        for name in self.names:
            row |= MEASURES[name](self, seen)
        if "steps" in self.names:
            row |= numbers(server.kept)
        return row

    def statistics(self, cast: Broadcast, report: Report) -> LocalStatistics:
        """Statistics of a local model as reported, with its client's personal parameters."""
        k = report.client
        x, y = self.task.data[k]
        counts = torch.bincount(y, minlength=self.task.classes)
        client = self.store.get(k) or first_client(self.recipe, self.task, cast, k)
        net = self.net.load(report.w, report.stats, client.personal, self.recipe.equip(cast.sent, counts)).eval()
        own = torch.from_numpy(evenly(len(y), MOST_OWN)).to(y.device)
        return statistics_of(net, k, counts, (x[own], y[own]), self.test)

    # ---- what is measured
    def norms(self, seen: Round) -> dict[str, Any]:
        """Mean norms of classifier rows and features: Figures 2 and 3 of FedFN."""
        weight = feature = None
        if self.has_global:
            weight = float(rows_of(seen.head).norm(dim=1).mean())
            feature = float(sample_norms(seen.net, self.test[0]).mean())
        return asdict(mean_norms(seen.clients, weight, feature))

    def classifiers(self, seen: Round) -> dict[str, Any]:
        """||w_c|| of every client after local training beside its label counts: Figures 3 and 12 of CCVR."""
        if not seen.clients or not seen.net.shared_head.moving:
            return {}
        return {
            "classifiers": {
                str(s.client): {"counts": s.counts.tolist(), "norms": rounded(s.rows.norm(dim=1))} for s in seen.clients
            }
        }

    def collapse(self, seen: Round) -> dict[str, Any]:
        """Distance of the class means from a simplex: Figure 5b of FedETF."""
        if not self.has_global or self.task.classes < 2:
            return {"nc_error": None}
        (x, y), head = self.test, seen.head
        h = seen.net.features_of(x)  # [n, d]
        row = {"nc_error": collapse_error(class_means(h, y, self.task.classes))}
        if head.feat != "id":
            row["nc_error_seen"] = collapse_error(class_means(embedded(head, h), y, self.task.classes))
        return row

    def consistency(self, seen: Round) -> dict[str, Any]:
        """Agreement of the clients' class means: Figure 5a of FedETF."""
        return dict(consistency_figures(seen.clients))

    def drift(self, seen: Round) -> dict[str, Any]:
        """||w_k - w^t|| in body and head, and the cosine between clients' updates."""
        moves = [(report.client, report.w) for report in seen.reports]
        return drift_figures(seen.cast.w, dict(moves))

    def temperature(self, seen: Round) -> dict[str, Any]:
        """The learned temperature (FedETF) of every client and of the global model."""
        own: dict[str, float] = {}
        for report in seen.reports:
            client = self.store.get(report.client)
            values = scales(report.w) or scales(client.personal if client else Tree())
            own |= {str(report.client): values[0]} if values else {}
        if not own:
            return {}
        return {
            "temperature": own,
            "temperature_mean": known_mean(own.values()),
            "temperature_global": scales(seen.server.w)[0],
        }

    def steps(self, seen: Round) -> dict[str, Any]:
        """Local steps of every client; `look` adds the recipe's own trace, such as FedExP's eta_g."""
        return {"steps": {str(report.client): report.steps for report in seen.reports}}


MEASURES: Mapping[str, Callable[[Watcher, Round], dict[str, Any]]] = {name: getattr(Watcher, name) for name in WATCHED}


def evenly(count: int, most: int) -> Any:
    """At most so many of 0 .. count - 1, evenly chosen."""
    return np.linspace(0, max(count - 1, 0), min(count, most)).astype(np.int64)


def rounded(values: Tensor) -> list[float]:
    """Rounded to five digits: a line holds hundreds of numbers."""
    return [float(f"{v:.5g}") for v in values.tolist()]


def scales(w: Tree) -> list[float]:
    """Learned temperatures among these parameters."""
    return [float(v) for name, v in w.items() if in_head(name) and name.endswith(".scale")]


def drift_figures(start: Tree, ends: Mapping[int, Tree]) -> dict[str, Any]:
    """||w_k - w^t|| in body and head, mean over clients, and the mean cosine between two clients' updates.

    None where nothing is shared.
    """
    found: dict[str, Any] = {"drift_body": None, "drift_head": None, "update_cosine": None}
    if not start:
        return found
    body, head = (
        gram(start.only(part), list(ends.values())) for part in (lambda name: not in_head(name), in_head)
    )  # [K, K] each: <w_k - w^t, w_j - w^t>
    if body is not None:
        found["drift_body"] = known_mean(body.diagonal().sqrt())
    if head is not None:
        found["drift_head"] = known_mean(head.diagonal().sqrt())
    whole = sum((g for g in (body, head) if g is not None), torch.zeros((), dtype=torch.float64))
    size = whole.diagonal().sqrt()
    found["update_cosine"] = known_mean(pairs(whole / torch.outer(size, size)))
    return found


def gram(start: Tree, ends: Sequence[Tree]) -> Tensor | None:
    """Inner products of the clients' updates, [K, K] in float64, a part of the parameters at a time."""
    total: Tensor | None = None
    for name, w in start.items():
        flat = w.flatten()
        for i in range(0, flat.numel(), COLUMNS):
            moved = torch.stack(
                [(end[name].flatten()[i : i + COLUMNS].double() - flat[i : i + COLUMNS].double()) for end in ends]
            )
            part = (moved @ moved.T).cpu()
            total = part if total is None else total + part
    return total
