"""What diagnostics look at: a finished run's models, and features that are computed once for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import NotApplicable
from headway.base.errors import CheckpointError
from headway.base.tree import Tree
from headway.engines import LocalEngine
from headway.engines.memory import GiveBackGrowth
from headway.metrics.local_statistics import LocalStatistics, statistics_of
from headway.models.heads import Head
from headway.models.net import Net
from headway.runs.directory import Table, read_table
from headway.runs.posthoc import Saved, Say, load, recipe_and_task, silent
from headway.runs.posthoc import finished as finished_run
from headway.training import rounds
from headway.training.client import train_client
from headway.training.task import Task

LOOKED_AT = 10_000  # test samples a diagnostic uses at most
KEPT = 2**28  # bytes of trained local models that are kept


@dataclass(frozen=True)
class LocalModel:
    """A client's model right after local training from the final global model; the net is valid until the next one."""

    client: int
    net: Net
    counts: Tensor  # [C] training samples per class


@dataclass(eq=False)
class Subject:
    """A finished run and its data. Everything costly is computed when first asked for and then kept."""

    saved: Saved
    most_clients: int = 20  # local models are trained of at most so many clients, evenly spread over the ids
    say: Say = field(default=silent, repr=False)
    trained: dict[int, Tree] = field(default_factory=dict, repr=False)  # client -> its local model, once trained
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # what diagnostics have made and share, by name
    no_model: str = ""  # why there is no trained model; then data, settings and tables are all there is to look at

    @classmethod
    def of(cls, path: Path, say: Say = silent, task: Task | None = None, most_clients: int = 20) -> Subject:
        return cls(load(path, say, task), most_clients, say)

    @classmethod
    def with_or_without_model(cls, path: Path, say: Say = silent, most_clients: int = 20) -> Subject:
        """Also of a run that diverged or has lost its checkpoint; an untrained model then stands where one must."""
        try:
            return cls.of(path, say, most_clients=most_clients)
        except CheckpointError as error:
            run = finished_run(path)
            recipe, task = recipe_and_task(run)
            saved = Saved(run, recipe, task, rounds.first_server(recipe, task), LocalEngine())
            return cls(saved, most_clients, say, no_model=str(error))

    @property
    def task(self) -> Task:
        return self.saved.task

    @property
    def classes(self) -> int:
        return self.task.classes

    @property
    def names(self) -> list[str]:
        """What the classes are called."""
        return [str(n) for n in self.task.dataset.class_names]

    @property
    def title(self) -> tuple[str, ...]:
        """Which run this is, for people: recipe, data and seed."""
        recipe = str(self.saved.run.config.get("label") or self.saved.recipe.title)
        return recipe, self.task.dataset.name, f"seed {self.task.seed}"

    @cached_property
    def net(self) -> Net:
        """The global model after the last round, before any calibration."""
        return rounds.global_net(self.saved.server, self.saved.recipe, self.task)

    @property
    def has_global_model(self) -> bool:
        return rounds.has_global_model(self.saved.recipe, self.task)

    def need_global_model(self) -> None:
        """For a diagnostic that looks at the global model's features."""
        recipe = self.saved.recipe
        if not self.has_global_model:
            raise NotApplicable(f"under {recipe.title} every client keeps its own body, so there is no global model")
        if not bool(self.features.isfinite().all()):
            raise NotApplicable("the global model's features are not finite numbers")
        if not bool(self.features.any()):
            raise NotApplicable("every feature of the global model is zero: its body is dead")

    @property
    def shares_head(self) -> bool:
        """Whether there is one classifier for all; where heads are personal, their mean stands for it."""
        return self.saved.recipe.share("head.weight")

    @cached_property
    def head(self) -> Head:
        """The global classifier before any calibration, or the mean of the clients' own where none is shared."""
        saved = self.saved
        server = saved.server if self.shares_head else rounds.with_mean_of_personal(saved.server, saved.engine.store)
        net = self.net if server is saved.server else rounds.global_net(server, saved.recipe, self.task)
        return net.shared_head

    @cached_property
    def watched(self) -> Table:
        """What was measured while the run went on: one row a watched round, none without --watch."""
        return read_table(self.saved.run.path / "watch.jsonl")

    @cached_property
    def test(self) -> tuple[Tensor, Tensor]:
        """The samples looked at: the global test set, or an even choice of it."""
        d = self.task.dataset
        rows = torch.from_numpy(np.linspace(0, len(d.y_test) - 1, min(len(d.y_test), LOOKED_AT)).astype(np.int64))
        return d.x_test[rows].to(self.task.device), d.y_test[rows].to(self.task.device)

    @cached_property
    def features(self) -> Tensor:
        """Raw features h of the global model on `test`, [N, d]."""
        return self.net.features_of(self.test[0])

    @cached_property
    def clients(self) -> Sequence[int]:
        """The clients whose local models are looked at."""
        able = self.task.everyone()
        chosen = np.linspace(0, len(able) - 1, min(len(able), self.most_clients)).astype(int)
        return [able[i] for i in chosen]

    def local_models(self) -> Iterator[LocalModel]:
        """Each chosen client's model after one more round of local training; one net in memory at a time.

        Trained once: what a client ended with is kept while it fits into KEPT bytes, and trained again where not.
        """
        recipe, task, engine = self.saved.recipe, self.task, self.saved.engine
        cast = rounds.cast_of(self.saved.server, recipe)
        limit_growth = GiveBackGrowth()
        for done, k in enumerate(self.clients):
            limit_growth(done, len(self.clients))
            if k not in self.trained:
                self.say(f"local model {done + 1} of {len(self.clients)}")
                train_client(recipe, task, cast, engine.client(recipe, task, cast, k), own_memory=False)
            net = task.working_net(recipe)  # after training it still holds what the client ended with
            net.load(recipe.equip(cast.sent, self.counts[k]))
            if k in self.trained:
                net.load(self.trained[k])
            elif (len(self.trained) + 1) * net.tensors().nbytes() <= KEPT:
                self.trained[k] = net.tensors()
            yield LocalModel(k, net.eval(), self.counts[k])

    @cached_property
    def local_statistics(self) -> list[LocalStatistics]:
        """Classifier, prototypes and norms of every chosen client, from one pass over the local models."""
        return [
            statistics_of(m.net, m.client, m.counts, self.task.data[m.client], self.test) for m in self.local_models()
        ]

    @cached_property
    def counts(self) -> Tensor:
        """Training samples per client and class, [K, C]."""
        labels = self.task.dataset.y.numpy()
        return torch.from_numpy(self.task.local.train.class_counts(labels, self.classes))
