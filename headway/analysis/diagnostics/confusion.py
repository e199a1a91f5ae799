"""Which classes are mistaken for which, and how accuracy goes with the training samples of a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.calibrated import calibrated
from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import COLOURS, Floats, blank, heat_map, label, tick_names
from headway.metrics.accuracy import personal_ids
from headway.metrics.geometry import finite_or_none
from headway.models.net import Net
from headway.training import rounds
from headway.training.client import personal_net

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN = 10  # classes at most for which the shares are written into the matrix
LONG_TABLE = 40_000  # cells of the matrix that are worth a line of CSV each
ABOUT = (
    "{whose}. Rows of the confusion matrix are true classes, columns predictions, and each row sums to 1; a dark "
    "column off the diagonal is a class that the model prefers, as classifiers do under skewed labels. Below, accuracy "
    "by class beside the number of training samples all clients have of it.{calibration}"
)


def confusion_matrix(y: Tensor, guess: Tensor, classes: int) -> Tensor:
    """Samples of true class r predicted as class c, [C, C]."""
    return torch.bincount(y.cpu() * classes + guess.cpu(), minlength=classes * classes).view(classes, classes)


def shares(counts: Tensor) -> Floats:
    """Rows that sum to one; a class without test samples is NaN."""
    c = counts.double()
    found: Floats = (c / c.sum(1, keepdim=True)).numpy()
    return found


def per_class(subject: Subject) -> Finding:
    """Per-class accuracy and confusion of the global model, before and after calibration where there is one."""
    saved, task = subject.saved, subject.task
    y = task.dataset.y_test
    found: dict[str, Tensor] = {}
    calibration = ""
    pair = calibrated(subject)
    if pair or has_global_classifier(subject):
        whose = f"The global model on {len(y)} test samples"
        nets = {"global model": subject.net}
        if pair:
            nets = {"before calibration": pair.before, f"after {pair.name}": pair.after}
            calibration = f" Calibration: {pair.source}."
        for name, net in nets.items():
            found[name] = confusion_matrix(y, saved.engine.logits(task, net).argmax(1), subject.classes)
    else:
        whose = "Each client's own model on its own test samples, all clients together: there is no global classifier"
        found["clients' own models"] = personal_confusion(subject)
    if not any(int(m.sum()) for m in found.values()):
        raise NotApplicable("per_class needs test samples, and there are none")
    return finding(subject, found, ABOUT.format(whose=whose, calibration=calibration))


def has_global_classifier(subject: Subject) -> bool:
    """Whether body and classifier are both everybody's."""
    recipe = subject.saved.recipe
    return rounds.has_global_model(recipe, subject.task) and recipe.share("head.weight")


@torch.no_grad()
def answers(net: Net, x: Tensor) -> Tensor:
    """The class a client's own model gives, [n]."""
    return net.logits_of(x, personal=True).argmax(1)


def personal_confusion(subject: Subject) -> Tensor:
    """All clients' own predictions on their own test data in one matrix, [C, C]."""
    saved, task = subject.saved, subject.task
    cast = rounds.cast_of(rounds.predicting(saved.server, saved.recipe), saved.recipe)
    total = torch.zeros(subject.classes, subject.classes, dtype=torch.int64)
    for k in personal_ids(task):
        client = saved.engine.client(saved.recipe, task, cast, k)
        _, net = next(personal_net(saved.recipe, task, cast, client, [], fresh=False))
        x, y = task.test(k)
        total += confusion_matrix(y, answers(net, x), subject.classes)
    return total


def finding(subject: Subject, found: Mapping[str, Tensor], about: str) -> Finding:
    names, train = subject.names, subject.counts.sum(0)  # [C]
    accuracy = {key: shares(m).diagonal() for key, m in found.items()}
    tests = next(iter(found.values())).sum(1)
    classes: list[dict[str, Any]] = [
        {"class": names[c], "training_samples": int(train[c]), "test_samples": int(tests[c])}
        | {f"accuracy ({key})": finite_or_none(values[c]) for key, values in accuracy.items()}
        for c in range(subject.classes)
    ]
    summary: dict[str, Any] = {}
    for key, m in found.items():
        known = {c: float(v) for c, v in enumerate(accuracy[key]) if np.isfinite(v)}
        worst = min(known, key=lambda c: known[c])
        guesses, off = m.sum(0), m - torch.diag(m.diagonal())
        r, c = divmod(int(off.argmax()), subject.classes)
        mistake = f"{names[r]} taken for {names[c]} ({int(off[r, c])})" if off.any() else "none"
        liked = int(guesses.argmax())
        summary |= {
            f"accuracy ({key})": int(m.diagonal().sum()) / int(m.sum()),
            f"worst class ({key})": f"{names[worst]} ({known[worst]:.0%})",
            f"most predicted class ({key})": f"{names[liked]} ({int(guesses[liked]) / int(m.sum()):.0%})",
            f"most frequent mistake ({key})": mistake,
        }
    tables = {"classes": classes}
    cells = [
        {"model": key, "true": names[r], "predicted": names[c], "samples": int(m[r, c])}
        for key, m in found.items()
        for r in range(subject.classes)
        for c in range(subject.classes)
        if subject.classes**2 <= LONG_TABLE or m[r, c]
    ]
    by_model = "; ".join(f"{key}: accuracy {summary[f'accuracy ({key})']:.1%}" for key in found)
    return Finding(
        "per_class",
        "Accuracy by class and confusion",
        about,
        summary,
        tables | {"confusion": cells},
        f"Confusion matrix of {subject.classes} classes; bars of accuracy and training samples by class ({by_model}).",
        lambda: draw({key: shares(m) for key, m in found.items()}, accuracy, train.numpy(), names),
    )


def draw(matrices: Mapping[str, Floats], accuracy: Mapping[str, Floats], train: Floats, names: Sequence[str]) -> Figure:
    """Matrices side by side; below, accuracy and training samples of every class."""
    many = len(names) > 25
    size = 5.2 if len(names) > WRITTEN else 4.6
    figure = blank(max(7.5, size * len(matrices) + 1.2), size + 4.0)
    grid = figure.add_gridspec(3, len(matrices), height_ratios=(size, 1.9, 1.2))
    tops = []
    turn = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if max(map(len, names)) > 2 else {}
    for column, (key, values) in enumerate(matrices.items()):
        axes = figure.add_subplot(grid[0, column])
        image = heat_map(axes, values, len(names) <= WRITTEN, zeros=False, vmin=0.0, vmax=1.0, cmap="Blues")
        axes.set_title(label(key, 40), fontsize=10)
        tick_names(axes.xaxis, names, 25, **turn)
        tick_names(axes.yaxis, names, 25)
        axes.set_xlabel("predicted class")
        if not column:
            axes.set_ylabel("true class")
        tops.append(axes)
    figure.colorbar(image, ax=tops, label="share of the true class", shrink=0.9)
    middle = figure.add_subplot(grid[1, :])
    place, width = np.arange(len(names)), 0.8 / len(accuracy)
    for i, (key, values) in enumerate(accuracy.items()):
        shift = (i - (len(accuracy) - 1) / 2) * width
        bars: dict[str, Any] = {"color": COLOURS[i], "label": label(key, 40), "width": width}
        middle.bar(place + shift, np.nan_to_num(values), **bars)
    untested = np.flatnonzero(np.isnan(next(iter(accuracy.values()))))
    for c in untested.tolist() if not many else ():
        middle.text(c, 0.02, "no test\nsamples", ha="center", fontsize=7)
    middle.set(ylabel="accuracy", ylim=(0, 1), xlim=(-0.6, len(names) - 0.4))
    middle.set_xticks([])
    if len(accuracy) > 1:
        middle.legend(fontsize=8, ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    bottom = figure.add_subplot(grid[2, :])
    bottom.bar(place, train, color="0.45")
    bottom.set(ylabel="training\nsamples", xlabel="class", xlim=(-0.6, len(names) - 0.4))
    tick_names(bottom.xaxis, names, 25, fontsize=8, **turn)
    for axes in (middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
