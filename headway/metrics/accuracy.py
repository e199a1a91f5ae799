"""Accuracy: global, per class and personal; and the summary figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headway.base.tree import stream
from headway.core.recipe import Recipe
from headway.core.state import Server
from headway.models.net import Net, normalises_by_batch
from headway.training import rounds

if TYPE_CHECKING:
    from headway.training.engine import Engine
    from headway.training.task import Task


FEWEST_ROUNDS = 10  # shorter runs are not judged: they may still be at chance, and a tenth of them is less than a round


@dataclass(frozen=True)
class GlobalScore:
    """The global model on the global test set."""

    acc: float
    loss: float
    per_class: list[float | None]  # None: no test sample of the class
    right: Tensor  # [N] bool

    @property
    def balanced(self) -> float:
        """The mean of the class accuracies."""
        known = [a for a in self.per_class if a is not None]
        return sum(known) / len(known)


@torch.no_grad()
def right_answers(net: Net, x: Tensor, y: Tensor, personal: bool = False) -> tuple[Tensor, float]:
    """Which samples are predicted correctly, [N] bool, and the mean cross-entropy."""
    if not len(y):
        return torch.zeros(0, dtype=torch.bool), 0.0
    net.eval()
    z = net.logits_of(x, personal)  # [N, C]
    return z.argmax(1) == y, float(F.cross_entropy(z, y))


def global_score(net: Net, engine: Engine, task: Task) -> GlobalScore:
    """The net on the global test set, computed by the engine's workers."""
    z, y = engine.logits(task, net), task.dataset.y_test.to(task.device)  # [N, C], [N]
    right, loss = z.argmax(1) == y, float(F.cross_entropy(z, y))
    totals = torch.bincount(y, minlength=net.classes)
    hits = torch.bincount(y[right], minlength=net.classes)
    per_class = [int(h) / int(t) if t else None for h, t in zip(hits, totals, strict=True)]
    return GlobalScore(int(right.sum()) / max(len(y), 1), loss, per_class, right)


@dataclass(frozen=True)
class PersonalScore:
    """Each client's model on its own test data; clients without test data are left out."""

    correct: dict[int, int]
    n: dict[int, int]

    @property
    def accs(self) -> dict[int, float]:
        return {k: self.correct[k] / n for k, n in self.n.items() if n}

    @property
    def mean(self) -> float | None:
        """Unweighted mean over clients."""
        accs = list(self.accs.values())
        return sum(accs) / len(accs) if accs else None

    @property
    def std(self) -> float | None:
        """Standard deviation over clients (ddof=0)."""
        return float(np.std(list(self.accs.values()))) if self.accs else None

    @property
    def pooled(self) -> float | None:
        """All right predictions over all test samples (FedTC's Eq. (9) with numerator and denominator exchanged)."""
        total = sum(self.n.values())
        return sum(self.correct.values()) / total if total else None


def personal_ids(task: Task) -> list[int]:
    """The clients whose own models are evaluated: all, or a fixed sample of `personal_clients` if there are more."""
    sizes, tests = np.diff(task.data.parts.offsets), np.diff(task.tests.parts.offsets)
    able = np.flatnonzero((sizes > 0) & (tests > 0))
    most = task.settings.personal_clients
    if len(able) > most:
        order = torch.randperm(len(able), generator=stream(task.seed, "personal clients"))[:most]
        able = np.sort(able[order.numpy()])
    return [int(k) for k in able]


def received_score(
    server: Server, recipe: Recipe, task: Task, engine: Engine, net: Net, score: GlobalScore, ids: Sequence[int]
) -> PersonalScore:
    """Every client's model as it receives the global one, before training (FedTC's protocol).

    Clients without tensors of their own predict alike, so one pass of the global model is enough for all of them.
    """
    parts = task.tests.parts
    by_counts = bool(recipe.acting("equip")) and bool(net.head.own_prediction)
    by_batch = normalises_by_batch(net)  # then a prediction depends on the other samples of its batch
    keeps_own = keeps_own_tensors(recipe, task)
    own = [k for k in ids if by_counts or by_batch or (keeps_own and k in engine.store)]
    alike = sorted(set(ids) - set(own))
    correct = shared_answers(task, engine, net, score, alike) if alike else {}
    if own:
        cast = rounds.cast_of(rounds.predicting(server, recipe), recipe)
        correct |= engine.received(recipe, task, cast, own)
    return PersonalScore(correct, {k: len(parts[k]) for k in ids})


def keeps_own_tensors(recipe: Recipe, task: Task) -> bool:
    """Whether clients that have trained predict with tensors of their own.

    It follows from the recipe and the parameters' names, as reading client states from disk would take long.
    """
    return bool(task.first_personal(recipe)) or "own model" in recipe.provides()


def shared_answers(task: Task, engine: Engine, net: Net, score: GlobalScore, ids: Sequence[int]) -> dict[int, int]:
    """Right predictions on the test data of clients that predict with the global model."""
    parts = task.tests.parts
    personal = bool(net.head.own_prediction)
    if task.local.test_from == "test" and not personal:
        right = score.right.cpu().numpy()
        return {k: int(right[parts[k]].sum()) for k in ids}
    positions = torch.from_numpy(np.concatenate([parts[k] for k in ids]))
    guessed = engine.logits(task, net, positions).argmax(1)  # computed by the engine's workers
    answers = guessed.cpu() == task.tests.y[positions.to(task.tests.y.device)].cpu()
    cuts = np.cumsum([len(parts[k]) for k in ids])[:-1]
    return {k: int(a.sum()) for k, a in zip(ids, np.split(answers.numpy(), cuts), strict=True)}


def curve_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The last and best global accuracy, and the means over the last 5 and 50 rounds, of evaluated rounds."""
    scored = [(row["round"], row["global_acc"]) for row in rows if row["global_acc"] is not None]
    if not scored:
        return {"last": None, "best": None, "last5": None, "last50": None}
    end = scored[-1][0]

    def window(size: int) -> float:
        inside = [acc for t, acc in scored if t > end - size]
        return sum(inside) / len(inside)

    best = max(acc for _, acc in scored)
    return {"last": scored[-1][1], "best": best, "last5": window(5), "last50": window(50)}


def rounds_to(rows: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """The first round at which the global accuracy reached each target; None if it never did."""
    reached: dict[str, int | None] = {}
    for target in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        hits = (row["round"] for row in rows if row["global_acc"] is not None and row["global_acc"] >= target)
        reached[f"{target:g}"] = next(hits, None)
    return reached


def failure(rows: Sequence[dict[str, Any]], classes: int, judged: str = "global_acc") -> str | None:
    """Why a run counts as failed: the loss is not finite, or the accuracy stays at chance; None if it did not fail."""
    for row in rows:
        if row["diverged"]:
            return f"the loss is not finite from round {row['round']} on"
    last = rows[-1]["round"] if rows else 0
    tail = [row[judged] for row in rows if row["round"] > 0.9 * last and row[judged] is not None]
    if last >= FEWEST_ROUNDS and tail and all(abs(a - 1 / classes) <= 0.01 for a in tail):
        return f"the accuracy stayed within 1 point of chance for the last {len(tail)} evaluations"
    return None
