"""What all figures share: colours that everybody can tell apart, names on one line, heat maps, axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headway.analysis.plotting.fonts import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.floating[Any]]
# Okabe and Ito's colours, which people with any colour vision can tell apart, and two more
COLOURS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A6A00", "#000000", "#882255", "#999999",
)  # fmt: skip
BLUE, GREEN, PURPLE, ORANGE = COLOURS[0], COLOURS[2], COLOURS[3], COLOURS[5]
GREY = "#7F7F7F"
MARKERS = ("o", "^", "s", "D", "v", "P", "X")  # past ten classes the marker changes too
LEGEND = 24  # more classes than this are shown by a colour bar
MOST_TICKS = 25
MOST_NUMBERS = 12  # rows and columns of a heat map whose cells have space for their numbers
COSINES: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0}


def blank(width: float, height: float) -> Figure:
    """A figure of so many inches that arranges its parts itself; pyplot's global state is not touched."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# ---- names
def one_line(text: str, most: int) -> str:
    """A name on one line of at most so many letters."""
    line = "".join(c if c.isprintable() else " " for c in written(str(text))).strip() or "(no name)"
    return line if len(line) <= most else line[: most - 1] + "…"


def label(text: str, most: int = 16) -> str:
    """A name as matplotlib shows it literally: $ would start a formula, a leading _ would hide a legend entry."""
    line = one_line(text, most)
    return (" " if line.startswith("_") else "") + line.replace("$", r"\$")


def tick_names(axis: Any, names: Sequence[str], most: int = MOST_TICKS, **style: Any) -> None:
    """Write as many of the names as can be read, evenly chosen."""
    places = list(range(0, len(names), -(-len(names) // most)))
    axis.set_ticks(places, [label(names[i]) for i in places], **({"fontsize": 8} | style))


def class_ticks(axis: Any, names: Sequence[str]) -> None:
    """Class names along a horizontal axis, upright where they are long."""
    shown = [label(name) for name in names[:: -(-len(names) // MOST_TICKS)]]
    tick_names(axis, names, rotation=90 if sum(map(len, shown)) > 24 else 0)


def number_text(value: float | None, form: str = "{:.3g}") -> str:
    return "n/a" if value is None else form.format(value)


def with_gaps(values: Sequence[float | None]) -> Floats:
    """Numbers to draw; NaN, which leaves a gap, for None."""
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


# ---- classes
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


# ---- heat maps
def heat_map(
    axes: Any, values: Any, numbers: bool | None = None, form: str = "{:.2f}", zeros: bool = True, **colours: Any
) -> Any:
    """Draw values [rows, columns] as colours, grey where a value is not known; give the image back.

    Small maps have their numbers in the cells (`numbers` decides otherwise); `zeros=False` leaves zeros blank.
    """
    on_cpu = values.cpu() if hasattr(values, "cpu") else values
    found = np.asarray(on_cpu, dtype=np.float64)
    axes.set_facecolor("0.85")
    image = axes.imshow(found, aspect="auto", interpolation="nearest", **({"cmap": "viridis"} | colours))
    axes.tick_params(length=2, labelsize=8)
    if max(found.shape) <= MOST_NUMBERS if numbers is None else numbers:
        size = 8 if found.shape[1] <= 8 else 6.5
        for i, j in np.argwhere(np.isfinite(found) & ((found != 0) | zeros)):
            r, g, b, _ = image.cmap(image.norm(found[i, j]))
            ink = "black" if 0.299 * r + 0.587 * g + 0.114 * b > 0.5 else "white"
            text = axes.text(j, i, form.format(found[i, j]), ha="center", va="center", fontsize=size, color=ink)
            text.set_in_layout(False)  # it is inside the axes, and measuring hundreds of texts takes seconds
    return image


def named_heat_map(
    figure: Figure,
    axes: Any,
    values: Any,
    columns: Sequence[str],
    rows: Sequence[str],
    title: str,
    bar: str,
    form: str = "{:.2f}",
    **colours: Any,
) -> None:
    """A heat map with names on both axes, a title and a colour bar."""
    image = heat_map(axes, values, form=form, **colours)
    class_ticks(axes.xaxis, columns)
    tick_names(axes.yaxis, rows)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label=bar, pad=0.02)


# ---- axes
def over_rounds(axes: Any, rounds: Sequence[Mapping[str, Any]], lines: Sequence[tuple[str, str, str]]) -> None:
    """Curves over watched rounds: (column, label, colour) each; a column without a value is left out."""
    for key, text, colour in lines:
        if any(row.get(key) is not None for row in rounds):
            values = with_gaps([row.get(key) for row in rounds])
            axes.plot([row["round"] for row in rounds], values, color=colour, label=text)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    plain_axes(axes)


def plain_axes(axes: Any) -> None:
    """Light horizontal lines, no frame at the top and right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def from_zero(axes: Any) -> None:
    """The vertical axis from zero to a little above the highest point."""
    axes.set_ylim(0, max(1.05 * axes.get_ylim()[1], 1e-9))


def without_numbers(axes: Any) -> None:
    """Axes of an embedding: their values mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color("0.8")
