"""What the figures share: colours that everybody can tell apart, names that are only text, matrices as heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headway.lettering import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.floating[Any]]
# Okabe and Ito's colours, told apart by every kind of eye, and two more; beyond them the marker changes too
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A6A00", "#000000", "#882255", "#999999",
)  # fmt: skip
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
LEGEND = 24  # more classes than this are told by a colour bar
GREY = "0.6"


def blank(width: float, height: float) -> Figure:
    """A figure that lays itself out; no global state is touched."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def label(text: str, most: int = 16) -> str:
    """A name as plain text on one line: nothing in it is markup, nothing hides it, nothing overruns its place."""
    line = "".join(c if c.isprintable() else " " for c in written(str(text))).strip()
    short = line if len(line) <= most else line[: most - 1] + "…"
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def mark(c: int) -> tuple[str, str]:
    """Colour and marker of class c; no two of the first 70 are alike."""
    return COLOURS[c % len(COLOURS)], MARKERS[(c // len(COLOURS)) % len(MARKERS)]


def class_colours(classes: int) -> list[Any]:
    """A colour a class: named ones while a legend can hold them, else a scale along the class number."""
    if classes <= LEGEND:
        return [mark(c)[0] for c in range(classes)]
    import matplotlib

    scale = matplotlib.colormaps["viridis"]
    return [scale(c / (classes - 1)) for c in range(classes)]


def scatter_classes(axes: Any, points: Floats, y: npt.NDArray[np.int64], classes: int, **style: Any) -> None:
    """Points [n, 2] coloured (and, past ten classes, shaped) by class."""
    colours = class_colours(classes)
    for c in range(classes):
        mine = points[y == c]
        if len(mine):
            shape = mark(c)[1] if classes <= LEGEND else "o"
            axes.scatter(mine[:, 0], mine[:, 1], **{"color": [colours[c]], "marker": shape, "linewidths": 0, **style})


def bare(axes: Any) -> None:
    """An embedding's axes mean nothing, so they carry no numbers."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color("0.8")


def class_legend(figure: Figure, axes: Sequence[Any], names: Sequence[str]) -> None:
    """Which colour is which class: a legend at the right, or a colour bar for many classes."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.lines import Line2D

    if len(names) > LEGEND:
        scale = ScalarMappable(Normalize(0, len(names) - 1), matplotlib.colormaps["viridis"])
        figure.colorbar(scale, ax=list(axes), label="class number", shrink=0.8)
        return
    dots = [Line2D([], [], linestyle="", color=mark(c)[0], marker=mark(c)[1], markersize=6) for c in range(len(names))]
    words = [label(n) for n in names]
    figure.legend(dots, words, loc="outside right center", title="class", fontsize=8, frameon=False)


def matrix(
    axes: Any, values: Floats, low: float, high: float, cmap: str = "viridis", numbers: bool | None = None
) -> Any:
    """A heat map of values [rows, columns]; small ones have their numbers written into them."""
    image = axes.imshow(values, vmin=low, vmax=high, cmap=cmap, interpolation="nearest", aspect="auto")
    axes.tick_params(length=2, labelsize=8)
    if values.size <= 144 if numbers is None else numbers:
        size = 8 if values.shape[1] <= 8 else 6
        for (i, j), v in np.ndenumerate(values):
            if math.isfinite(v) and v != 0:
                r, g, b, _ = image.cmap(image.norm(v))
                dark = 0.299 * r + 0.587 * g + 0.114 * b < 0.5
                axes.text(j, i, f"{v:.2f}", ha="center", va="center", fontsize=size, color="w" if dark else "k")
    return image


def ticks(axis: Any, names: Sequence[str], most: int = 25, **style: Any) -> None:
    """As many of the names as can be read, evenly chosen."""
    places = list(range(0, len(names), -(-len(names) // most)))
    axis.set_ticks(places, [label(names[i]) for i in places], **style)


def finite(value: float) -> float | None:
    """The number, or None where it is none."""
    return float(value) if math.isfinite(value) else None


def mean_of_pairs(values: Floats) -> float | None:
    """The mean over pairs i < j of a symmetric matrix; pairs without a value do not count."""
    pairs = values[np.triu_indices(len(values), 1)]
    known = pairs[np.isfinite(pairs)]
    return float(known.mean()) if len(known) else None
