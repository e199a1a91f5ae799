"""Separability of the class Gaussians, and the gain a calibration of the classifier may bring (CCVR)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.plotting import style
from headway.base.errors import RecipeError
from headway.base.tree import stream
from headway.core.recipe import spell
from headway.methods import virtual_calibration
from headway.metrics.accuracy import global_score
from headway.metrics.geometry import known_mean, pair_rows, pairs
from headway.models.moments import Moments
from headway.models.net import Net
from headway.training import rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headway.analysis.diagnostics.subject import Subject

DIRECTIONS = 200  # L
FRESH = 200  # virtual features a class that the forecast is judged on
MOST_BYTES = 2**30  # of the class covariances
AT_ONCE = 8192  # features that are pooled at a time
MOST_REAL = 10_000  # real features the oracle is retrained on: more take minutes
ABOUT = (
    "Each class is a Gaussian of what the classifier sees, pooled exactly from the clients' counts, means and "
    "covariances on their training data. The heat map is the sliced 2-Wasserstein distance between two of them, over "
    f"{DIRECTIONS} random directions; `sw` is the mean over pairs. CCVR's Figure 6 (Luo et al., 2021) observes that "
    "calibration gains more where sw is larger. `forecast` is a gain too, and needs no test sample: the accuracy of "
    "CCVR's retrained classifier minus that of the present one, both on fresh virtual features drawn from these "
    "Gaussians, the same number of each class. It is right as far as features are Gaussian; "
    "it cannot see how training and test features differ. `ccvr_gain` is what it forecasts, measured on the test set. "
    "`oracle_gain` is measured too, after the same retraining on real training features: the paper's bound, which "
    "holds as far as that retraining has converged."
)


def directions(d: int, count: int, rng: torch.Generator) -> Tensor:
    """Random unit vectors, [L, d]."""
    theta = torch.randn(count, d, generator=rng, dtype=torch.float64)
    return theta / theta.norm(dim=1, keepdim=True)


def sliced_wasserstein(classes: Sequence[Moments], theta: Tensor) -> Tensor:
    """SW between any two of the Gaussians, [C, C]: the closed form of one-dimensional Gaussians, over directions.

    W2^2 = (theta.(mu_a - mu_b))^2 + (sqrt(theta^T Sigma_a theta) - sqrt(theta^T Sigma_b theta))^2
    """
    mu = torch.stack([m.mean @ theta.T for m in classes])  # [C, L]
    sigma = torch.stack([((theta @ m.cov) * theta).sum(1).clamp(min=0).sqrt() for m in classes])  # [C, L]
    return torch.stack(
        [((mu - a).square() + (sigma - s).square()).mean(1).sqrt() for a, s in zip(mu, sigma, strict=True)]
    )


@dataclass(frozen=True)
class Pool:
    """What the clients' training data look like to the classifier."""

    classes: dict[int, Moments]
    e: Tensor  # [n, d] real features, at most MOST_REAL or so
    y: Tensor  # [n]
    whole: bool  # whether those are all


def pooled(subject: Subject, net: Net) -> Pool:
    """One pass over all clients, some thousand features in memory at a time."""
    task, d = subject.task, net.shared_head.weight.shape[1]
    need = 8 * subject.classes * d * d
    if need > MOST_BYTES:
        raise NotApplicable(f"covariances of {subject.classes} classes and {d} features need {need / 2**30:.1f} GB")
    everyone = task.everyone()
    every = -(-sum(map(task.data.size, everyone)) // MOST_REAL)
    held: list[tuple[Tensor, Tensor]] = []

    def seen() -> Iterator[tuple[Tensor, Tensor]]:
        for done, k in enumerate(everyone):
            subject.saved.engine.tick(done, len(everyone))
            subject.say(f"features of client {done + 1} of {len(everyone)}")
            x, y = task.data[k]
            e = net.embedding_of(x)  # [n_k, d]
            held.append((e[::every].clone(), y[::every]))
            yield e, y

    classes = class_moments(seen())
    e, y = (torch.cat(part) for part in zip(*held, strict=True))
    return Pool(classes, e, y, every == 1)


def class_moments(parts: Iterable[tuple[Tensor, Tensor]], rows: int = AT_ONCE) -> dict[int, Moments]:
    """Count, mean and scatter of every class over all clients' (e, y): Eqs. (3), (4), pooled exactly in any grouping.

    Clients are taken together until there are so many rows, for a pool costs d x d whatever a client holds.
    """
    found: dict[int, Moments] = {}
    waiting: list[tuple[Tensor, Tensor]] = []

    def pool() -> None:
        e, y = (torch.cat(part) for part in zip(*waiting, strict=True))
        waiting.clear()
        for c in y.unique().tolist():
            m = Moments.of(e[y == c])
            found[c] = Moments.pool([found[c], m]) if c in found else m

    for part in parts:
        waiting.append(part)
        if sum(len(y) for _, y in waiting) >= rows:
            pool()
    if waiting:
        pool()
    return {c: found[c] for c in sorted(found)}


def with_spread(classes: dict[int, Moments]) -> dict[int, Moments]:
    """A class with a single feature borrows the mean covariance of the others, as in CCVR."""
    several = [m for m in classes.values() if m.n > 1]
    if not several or len(several) == len(classes):
        return classes
    mean = torch.zeros_like(several[0].scatter)  # [d, d], the only one in memory beside the classes' own
    for m in several:
        mean.add_(m.scatter, alpha=1 / ((m.n - 1) * len(several)))
    return {c: m if m.n > 1 else m.with_cov(mean) for c, m in classes.items()}


@dataclass(frozen=True)
class Gains:
    """Accuracies with the classifier as it is, and retrained."""

    now: float  # on the test set
    ccvr: float  # after retraining on virtual features, on the test set
    oracle: float  # after retraining on real features, on the test set
    virtual_now: float  # on fresh virtual features
    virtual_after: float  # after CCVR, on the same


def gains(subject: Subject, pool: Pool) -> Gains | None:
    """None where a recipe's classifier cannot be retrained."""
    saved, task = subject.saved, subject.task
    ccvr, oracle = virtual_calibration(saved.recipe, subject.shares_head)
    try:
        recipes = [saved.with_piece(spell(piece), "calib") for piece in (ccvr, oracle)]
    except RecipeError:
        return None
    start = rounds.calibration_start(saved.server, recipes[0], saved.engine.store)

    def fresh() -> Net:
        return rounds.global_net(start, recipes[0], task)

    subject.say("retraining on virtual features")
    survey = {str(c): m for c, m in pool.classes.items()}
    virtual = ccvr.calibrate(fresh(), [survey], stream(task.seed, "finish")).eval()
    subject.say("retraining on real features")
    real = oracle.calibrate(fresh(), [{"e": pool.e, "y": pool.y}], stream(task.seed, "finish")).eval()
    rng = stream(task.seed, "forecast")
    drawn = {c: m.sample(FRESH, rng) for c, m in with_spread(pool.classes).items()}  # [FRESH, d] each
    return Gains(
        *(global_score(net, saved.engine, task).acc for net in (fresh(), virtual, real)),
        *(virtual_accuracy(net, drawn) for net in (fresh(), virtual)),
    )


@torch.no_grad()
def virtual_accuracy(net: Net, drawn: dict[int, Tensor]) -> float:
    """The share of virtual features that the classifier puts into the class they were drawn from."""
    head = net.shared_head
    right = sum(int((head.logits(e).argmax(1) == c).sum()) for c, e in drawn.items())
    return right / sum(map(len, drawn.values()))


def separability(subject: Subject) -> Finding:
    """Sliced Wasserstein distances between class Gaussians, a forecast and the oracle's gain."""
    subject.need_global_model()
    net = subject.net
    pool = pooled(subject, net)
    if len(pool.classes) < 2:
        raise NotApplicable("the clients hold one class, and a distance is between two")
    names = [subject.names[c] for c in pool.classes]
    theta = directions(pool.e.shape[1], DIRECTIONS, stream(subject.task.seed, "sliced")).to(pool.e.device)
    matrix = sliced_wasserstein(list(pool.classes.values()), theta).cpu()  # [C', C']
    found = gains(subject, pool)
    summary: dict[str, Any] = {"sw": known_mean(pairs(matrix))}
    if found:
        summary |= {
            "forecast": found.virtual_after - found.virtual_now,
            "ccvr_gain": found.ccvr - found.now,
            "oracle_gain": found.oracle - found.now,
            "accuracy": found.now,
            "ccvr_accuracy": found.ccvr,
            "oracle_accuracy": found.oracle,
            "oracle_features": len(pool.y),
        }
    alt = f"Distances between class Gaussians: mean {style.number_text(summary['sw'])}, from " + (
        f"{style.number_text(float(pairs(matrix).min()))} to {style.number_text(float(pairs(matrix).max()))}."
    )
    note = "" if found else " The gains are left out: this recipe's classifier cannot be retrained on the server."
    if found:
        points = [f"{100 * summary[key]:.1f}" for key in ("forecast", "ccvr_gain", "oracle_gain")]
        alt += f" Gains in points: forecast {points[0]}, measured by CCVR {points[1]}, by the oracle {points[2]}."
        note = (
            "" if pool.whole else f" The oracle is retrained on {len(pool.y)} of the training features, evenly chosen."
        )
    return Finding(
        "separability", "Separability of class Gaussians", ABOUT + note, summary,
        {"distances": pair_rows("class", names, matrix, "sw")}, alt,
        draw=lambda: figure_of(matrix, found, names),
    )  # fmt: skip


def figure_of(matrix: Tensor, found: Gains | None, names: list[str]) -> Figure:
    figure = style.blank(12.5 if found else 7, 4.8)
    heat, *more = figure.subplots(1, 2 if found else 1, squeeze=False)[0]
    distances = matrix.clone().fill_diagonal_(float("nan"))  # a class is at no distance from itself
    style.named_heat_map(figure, heat, distances, names, names, "sliced Wasserstein distance", "SW", "{:.2g}")
    heat.set(xlabel="class", ylabel="class")
    for axes in more:
        assert found is not None
        groups = (("virtual features\n(forecast)", found.virtual_now, found.virtual_after),
                  ("test set\n(CCVR, measured)", found.now, found.ccvr),
                  ("test set\n(oracle, measured)", found.now, found.oracle))  # fmt: skip
        for place, (_, before, after) in enumerate(groups):
            for shift, value, colour in ((-0.2, before, style.GREY), (0.2, after, style.BLUE)):
                axes.bar(place + shift, 100 * value, 0.36, color=colour)
                axes.text(place + shift, 100 * value + 1, f"{100 * value:.1f}", ha="center", fontsize=9)
            axes.text(place, 108, f"gain {100 * (after - before):+.1f}", ha="center", fontsize=10)
        axes.set_xticks(range(3), [name for name, _, _ in groups])
        axes.set(ylabel="accuracy, %", ylim=(0, 116), yticks=range(0, 101, 20))
        axes.set_title("classifier as it is (grey) and retrained (blue)", fontsize=10)
        style.plain_axes(axes)
    return figure
