"""What the figures of diagnostics share: readable class names, heat maps, colours that everybody can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.data.plots import _plain_text
from headway.lettering import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F"  # Okabe and Ito's
MOST_TICKS = 25
MOST_WRITTEN = 12  # rows and columns of a heat map whose cells still have room for their numbers
COSINES: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0}


def blank(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def short(name: str, most: int = 14) -> str:
    """A name fit for a tick: one short line, nothing in it taken for markup."""
    return _plain_text(one_line(name, most))


def one_line(name: str, most: int) -> str:
    line = "".join(c if c.isprintable() else " " for c in written(name)).strip() or "(no name)"
    return line if len(line) <= most else line[: most - 2] + ".."


def ticks(count: int) -> npt.NDArray[np.int64]:
    """Which of so many names are written: all, or an even choice."""
    return np.arange(0, count, -(-count // MOST_TICKS))


def name_x(axes: Any, names: Sequence[str]) -> None:
    told = [short(names[i]) for i in ticks(len(names))]
    upright = sum(map(len, told)) > 24
    axes.set_xticks(ticks(len(names)), told, fontsize=8, rotation=90 if upright else 0)


def name_y(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(ticks(len(names)), [short(names[i]) for i in ticks(len(names))], fontsize=8)


def heat(
    figure: Figure,
    axes: Any,
    matrix: Tensor | npt.NDArray[Any],
    columns: Sequence[str],
    rows: Sequence[str],
    title: str,
    label: str,
    form: str = "{:.2f}",
    **colours: Any,
) -> None:
    """A heat map with a colour bar; numbers stand in the cells where there is room, grey where nothing is known."""
    values = matrix.double().cpu().numpy() if isinstance(matrix, Tensor) else np.asarray(matrix, dtype=float)
    axes.set_facecolor("0.85")
    image = axes.imshow(values, aspect="auto", interpolation="nearest", **({"cmap": "viridis"} | colours))
    name_x(axes, columns)
    name_y(axes, rows)
    axes.set_title(title, fontsize=10)
    figure.colorbar(image, ax=axes, label=label, pad=0.02)
    if max(values.shape) <= MOST_WRITTEN:
        for i, j in np.argwhere(np.isfinite(values)):
            r, g, b, _ = image.cmap(image.norm(values[i, j]))
            ink = "black" if 0.299 * r + 0.587 * g + 0.114 * b > 0.5 else "white"
            told = axes.text(j, i, form.format(values[i, j]), ha="center", va="center", fontsize=6.5, color=ink)
            told.set_in_layout(False)  # it is inside the axes: measuring hundreds of them takes seconds


def over_rounds(axes: Any, rounds: Sequence[Mapping[str, Any]], lines: Sequence[tuple[str, str, str]]) -> None:
    """Curves over watched rounds: (column, label, colour) each; a column nobody measured is left out."""
    for key, label, colour in lines:
        if any(row.get(key) is not None for row in rounds):
            values = as_tensor([row.get(key) for row in rounds])
            axes.plot([row["round"] for row in rounds], values, color=colour, label=label)
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    plain_axes(axes)


def plain_axes(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)


def from_zero(axes: Any) -> None:
    """The vertical axis from zero, with some air above the highest point."""
    axes.set_ylim(0, max(1.05 * axes.get_ylim()[1], 1e-9))


def matrix_rows(key: str, names: Sequence[str], matrix: Tensor, value: str) -> list[dict[str, Any]]:
    """A symmetric matrix over classes or clients as a table: one line a pair."""
    flat = matrix.double().cpu().tolist()
    return [
        {key: names[i], f"other_{key}": names[j], value: number(flat[i][j])}
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]


def number(value: Tensor | float) -> float | None:
    """A float, or None for what is not known."""
    value = float(value)
    return value if np.isfinite(value) else None


def told(value: float | None, form: str = "{:.3g}") -> str:
    return "n/a" if value is None else form.format(value)


def as_tensor(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([float("nan") if v is None else v for v in values], dtype=torch.float64)
