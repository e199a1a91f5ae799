"""Curves of a run: accuracy and loss round by round, and what was traced beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.analysis.diagnostics.finding import Finding, NotApplicable
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import COLOURS, GREY, Floats, blank, label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGMA = 2.0
SMOOTHED = ("accuracy", "loss")
MANY = 10  # curves in one panel that can still be distinguished
ENOUGH = 10  # evaluations that a smoothed curve is worth drawing for
STYLES = ("-", "--", "-.", ":")
ACCURACIES = {
    "global_acc": "global",
    "personal_acc": "mean personal as received",
    "pooled_local_acc": "pooled personal as received",
    "iterate_acc": "global at the last iterate",
}
LOSSES = {"global_loss": "global test loss", "train_loss": "training loss of clients"}
UNITS = {
    "loss": "loss as trained", "server step size": "eta_g", "local steps": "steps of a client in a round",
    "temperature": "scale of the logits",
}  # fmt: skip
ABOUT = (
    "Round by round: accuracies and losses as measured (faint) and smoothed by a Gaussian kernel of sigma = 2 "
    "evaluations (bold), as in Figure 5 of the FedAvg+ETF+GMV paper; smoothing is for the eye alone, the numbers are "
    "those measured.{more}"
)
Curve = list[tuple[int, float]]  # (round, value)


def smooth(values: Sequence[float], sigma: float = SIGMA) -> Floats:
    """Gaussian kernel over neighbouring values; at the ends the weights that remain are made to sum to one."""
    v = np.asarray(values, dtype=float)
    gap = np.arange(len(v))[:, None] - np.arange(len(v))  # [n, n]
    weight = np.exp(-(gap**2) / (2 * sigma**2))
    found: Floats = (weight @ v) / weight.sum(1)
    return found


def curve(rows: Iterable[Mapping[str, Any]], key: str) -> Curve:
    """(round, value) wherever the row has a finite number under this key."""
    found = [(row.get("round"), row.get(key)) for row in rows]
    return [(int(t), float(v)) for t, v in found if number(t) and number(v)]  # type: ignore[arg-type]


def number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def flat_rows(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Rows with values of inner mappings under `outer.inner`."""
    flat = []
    for row in rows:
        if isinstance(row, Mapping) and number(row.get("round")):
            inner = {f"{k}.{j}": v for k, d in row.items() if isinstance(d, Mapping) for j, v in d.items()}
            flat.append({k: v for k, v in row.items() if not isinstance(v, Mapping)} | inner)
    return flat


def watched_rows(path: Path) -> list[dict[str, Any]]:
    """What `--watch` wrote, as far as it can be read: it is no part of the run's result."""
    rows = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return flat_rows(rows)


def series(rows: Sequence[Mapping[str, Any]], chosen: Iterable[str]) -> dict[str, Curve]:
    """The curves of these keys that have values."""
    return {key: found for key in chosen if (found := curve(rows, key))}


def keys_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row if key != "round"))


def traces(subject: Subject) -> Finding:
    """Learning curves, and traces of steps, temperature and drift where the run has them."""
    run = subject.saved.run
    rows, watched = flat_rows(run.metrics), watched_rows(run.path / "watch.jsonl")
    if not rows:
        raise NotApplicable("traces draws metrics.jsonl round by round, and this run has no rounds")
    panels = {"accuracy": named(series(rows, ACCURACIES), ACCURACIES), "loss": named(series(rows, LOSSES), LOSSES)}
    steps = series(rows, [k for k in keys_of(rows) if last_part(k) == "eta_g"])
    steps = steps or series(watched, [k for k in keys_of(watched) if last_part(k) == "eta_g"])
    panels["server step size"] = named(steps, {})
    panels["local steps"] = of_clients(watched, "steps")
    shared = named(series(watched, ["temperature_global"]), {"temperature_global": "global"})
    panels["temperature"] = shared | of_clients(watched, "temperature", "scale")
    drifts = [k for k in keys_of(watched) if k.startswith("drift") and "." not in k]
    panels["drift"] = named(series(watched, drifts), {})
    panels["cosine of updates"] = named(series(watched, [k for k in keys_of(watched) if k == "update_cosine"]), {})
    panels = {title: curves for title, curves in panels.items() if curves}
    finals = temperatures(subject)
    tables: dict[str, list[dict[str, Any]]] = {
        "curves": [
            {"panel": title, "curve": name, "round": t, "value": v, "smoothed": float(s)}
            for title, curves in panels.items()
            for name, points in curves.items()
            for (t, v), s in zip(points, smooth([v for _, v in points]), strict=True)
        ]
    }
    if finals:
        tables["temperatures"] = [{"whose": who, "temperature": value} for who, value in finals.items()]
    summary: dict[str, Any] = {"rounds": rows[-1]["round"]}
    for title in ("accuracy", "server step size"):
        for name, points in panels.get(title, {}).items():
            summary |= {f"{name} (last)": points[-1][1], f"{name} (highest)": max(v for _, v in points)}
    if local := [v for points in panels.get("local steps", {}).values() for _, v in points]:
        summary |= {"local steps (fewest)": min(local), "local steps (most)": max(local)}
    for title in ("drift", "cosine of updates"):
        summary |= {f"{name} (last)": points[-1][1] for name, points in panels.get(title, {}).items()}
    if finals:
        summary |= {"mean temperature at the end": float(np.mean(list(finals.values())))}
    extra = [title for title in panels if title not in ("accuracy", "loss")]
    more = f" Also traced: {', '.join(extra)}." if extra else ""
    panel_names = "; ".join(f"{title}: {', '.join(list(curves)[:6])}" for title, curves in panels.items())
    return Finding(
        "traces",
        "Curves of the run",
        ABOUT.format(more=more),
        summary,
        tables,
        f"Line charts over rounds of {panel_names}.",
        (lambda: draw(panels)) if panels else None,
    )


def named(curves: Mapping[str, Curve], names: Mapping[str, str]) -> dict[str, Curve]:
    return {names.get(key, last_part(key).replace("_", " ")): points for key, points in curves.items()}


def of_clients(rows: Sequence[Mapping[str, Any]], *kinds: str) -> dict[str, Curve]:
    """A curve a client of what is watched client by client: `steps.3` is client 3's."""
    keys = [key for key in keys_of(rows) if key.partition(".")[0] in kinds and key.partition(".")[2]]
    keys.sort(key=lambda key: (len(last_part(key)), last_part(key)))  # 2 before 10, whoever was drawn first
    return {f"client {last_part(key)}": points for key, points in series(rows, keys).items()}


def last_part(key: str) -> str:
    return key.rpartition(".")[2]


def temperatures(subject: Subject) -> dict[str, float]:
    """The learned scale of the logits at the end: the server's, and each client's where it is the client's own."""
    saved = subject.saved
    found: dict[str, float] = {}
    if subject.no_model:
        return found
    for name, value in saved.server.w.items():
        if name.startswith("head.") and last_part(name) == "scale":
            if saved.recipe.share(name):
                found["global"] = float(value)
            for k in saved.engine.store.ids():
                client = saved.engine.store.get(k)
                if client is not None and name in client.personal:
                    found[f"client {k}"] = float(client.personal[name])
    return found


def draw(panels: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """A panel a kind of curve, two in a row."""
    from matplotlib.ticker import MaxNLocator

    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = blank(6.2 * columns, 3.6 * lines)
    for place, (title, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        for i, (name, points) in enumerate(curves.items()):
            plot(axes, points, title in SMOOTHED, **style_of(i, name, len(curves)))
        axes.set(title=title, xlabel="round", ylabel=UNITS.get(title, title))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if title == "loss" and spans(curves):
            axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, frameon=False)
    return figure


def style_of(i: int, name: str, curves: int) -> dict[str, Any]:
    """Curve by curve another colour and dash, so that one shows through another; a crowd of clients is grey."""
    if curves > MANY and name != "global":
        return {"color": GREY, "linestyle": "-", "alpha": 0.6, "label": "a client" if i == curves - 1 else None}
    if curves > MANY:
        return {"color": COLOURS[0], "linestyle": "-", "zorder": 3, "label": name}
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "label": label(name, 40)}


def plot(axes: Any, points: Curve, smoothed: bool, **style: Any) -> None:
    t, v = [t for t, _ in points], [v for _, v in points]
    if smoothed and len(points) >= ENOUGH:
        axes.plot(t, v, linewidth=0.9, alpha=0.4, color=style["color"])
        axes.plot(t, smooth(v), linewidth=2, **style)
    else:
        axes.plot(t, v, linewidth=1.4, marker="o" if len(points) < ENOUGH else "", markersize=4, **style)


def spans(curves: Mapping[str, Curve]) -> bool:
    """Whether values are positive and spread over more than a factor of thirty."""
    values = [v for points in curves.values() for _, v in points]
    return min(values) > 0 and max(values) > 30 * min(values)
