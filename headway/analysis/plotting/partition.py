"""A partition to look at: a picture of who holds which labels, and the same as rows of text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headway.analysis.plotting.fonts import lettering, without_boxes, written
from headway.analysis.plotting.style import BLUE, blank, label, tick_names
from headway.base.errors import DiskError
from headway.data.partitions.partition import Partition, describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ints = npt.NDArray[np.int64]
BAR_CLIENTS = 60  # more bars than this and no label can be read
BAR_CLASSES = 20  # as many colours as the eye can tell apart
LONGEST = 60  # letters of a name or title
COLUMNS = 1000  # columns of the heat map: more would exceed its pixels


def plot(
    p: Partition,
    labels: npt.NDArray[Any],
    path: Path,
    class_names: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """A PNG of samples per client and class: stacked bars when few enough to read, else a heat map."""
    png = io.BytesIO()
    with lettering(_names(class_names, p.classes)):
        figure_of(p, labels, class_names, title).savefig(png, format="png", dpi=130)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(png.getvalue())
    except OSError as error:
        raise DiskError(
            f"plot '{path}' cannot be written ({error.strerror or error}); free space or check the folder"
        ) from error


def figure_of(
    p: Partition,
    labels: npt.NDArray[Any],
    class_names: Sequence[str] | None = None,
    title: str = "",
    bubbles: bool = False,
) -> Figure:
    """Samples per client and class: stacked bars (or bubbles) when few enough to read, else a heat map."""
    counts = p.counts(labels)
    names = [written(name) for name in _names(class_names, p.classes)]
    figure = blank(10, 5.2)
    if len(p) <= BAR_CLIENTS and p.classes <= BAR_CLASSES:
        (_bubbles if bubbles else _bars)(figure, counts, names)
    else:
        _heat(figure, counts, names)
    figure.suptitle(label(without_boxes(title or f"{p.spec}, {len(p)} clients, seed {p.seed}"), LONGEST), fontsize=12)
    facts = describe(p, labels)
    figure.supxlabel(
        f"samples per client {facts['size_min']} to {facts['size_max']} (Gini {facts['size_gini']:.2f})   "
        f"effective classes {facts['effective_classes']:.1f} of {p.classes}   "
        f"label divergence {facts['js_divergence']:.2f}   empty clients {facts['empty']}",
        fontsize=9,
        color="0.35",
    )
    return figure


def rows(
    p: Partition, labels: npt.NDArray[Any], limit: int = 30, class_names: Sequence[str] | None = None
) -> list[list[str]]:
    """A header, then one row per client: its size and its count of each class ('.' for none).

    With more than 20 classes the columns would not fit: the number of classes and the five largest instead.
    After `limit` clients one last row says how many more there are. All rows are equally long.
    """
    counts, names = p.counts(labels), _names(class_names, p.classes)
    wide = p.classes > BAR_CLASSES
    table = [["client", "size", "classes", "largest"] if wide else ["client", "size", *names]]
    for k, row in enumerate(counts[: max(limit, 0)]):
        start = [str(k), str(row.sum())]
        if wide:
            held = [c for c in np.argsort(-row, kind="stable") if row[c] > 0]
            more = " ..." if len(held) > 5 else ""
            table.append([*start, str(len(held)), ", ".join(f"{names[c]}: {row[c]}" for c in held[:5]) + more])
        else:
            table.append(start + [str(n) if n else "." for n in row])
    if (hidden := len(p) - (len(table) - 1)) > 0:
        table.append([f"... and {hidden:,} more"] + [""] * (len(table[0]) - 1))
    return table


def _bars(figure: Any, counts: Ints, names: list[str]) -> None:
    import matplotlib

    colours = matplotlib.color_sequences["tab10" if len(names) <= 10 else "tab20"]
    axes = figure.add_subplot()
    clients = np.arange(len(counts))
    below = np.zeros(len(counts), dtype=np.int64)
    handles = []
    for c in range(counts.shape[1]):
        handles.append(axes.bar(clients, counts[:, c], bottom=below, color=colours[c % len(colours)], width=0.85))
        below += counts[:, c]
    axes.set(xlabel="client", ylabel="samples", xlim=(-0.7, len(counts) - 0.3))
    axes.set_xticks(clients[:: -(-len(counts) // 30)])
    axes.spines[["top", "right"]].set_visible(False)
    # reversed: the legend then reads in the order of the stack
    figure.legend(
        handles[::-1],
        [label(n, LONGEST) for n in names[::-1]],
        loc="outside right upper",
        title="class",
        fontsize=9,
    )


def _bubbles(figure: Any, counts: Ints, names: list[str]) -> None:
    """A disc a client and class, its area in proportion to the samples."""
    axes = figure.add_subplot()
    gap = min(620 / (len(counts) + 1), 300 / (len(names) + 1))  # points between two centres
    client, held = np.nonzero(counts)
    n = counts[client, held]
    axes.scatter(client, held, s=(0.95 * gap) ** 2 * n / max(int(counts.max()), 1), color=BLUE, linewidths=0)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.7, len(counts) - 0.3), ylim=(-0.7, len(names) - 0.3))
    axes.set_xticks(np.arange(len(counts))[:: -(-len(counts) // 30)])
    axes.set_yticks(np.arange(len(names)), [label(n, LONGEST) for n in names], fontsize=8)
    axes.set_title(f"the largest disc is {int(counts.max())} samples of one class", fontsize=9, color="0.35")
    axes.spines[["top", "right"]].set_visible(False)


def _heat(figure: Any, counts: Ints, names: list[str]) -> None:
    """Share of each class per client, clients sorted by their largest class; their sizes underneath."""
    sizes = counts.sum(axis=1)
    order = np.lexsort((-sizes, counts.argmax(axis=1), sizes == 0))
    every = -(-len(order) // COLUMNS)
    shown = order[::every]
    shares = counts[shown] / np.maximum(sizes[shown], 1)[:, None]
    top, bottom = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    image = top.imshow(shares.T, aspect="auto", interpolation="nearest", cmap="Blues", vmin=0)
    figure.colorbar(image, ax=top, label="share of the client's samples", pad=0.01)
    tick_names(top.yaxis, names)
    top.set_ylabel("class")
    bottom.stairs(sizes[shown], np.arange(len(shown) + 1) - 0.5, fill=True, color="0.4")
    bottom.set(ylabel="samples", ylim=(0, None), xlim=(-0.5, len(shown) - 0.5))
    which = f" (1 in {every} shown)" if every > 1 else ""
    bottom.set_xlabel(f"clients, sorted by largest class, then size{which}")
    bottom.spines[["top", "right"]].set_visible(False)


def _names(class_names: Sequence[str] | None, classes: int) -> list[str]:
    given = [str(name) for name in class_names or ()]
    return given + [str(c) for c in range(len(given), classes)] if len(given) < classes else given[:classes]
