"""Drift: how far local training carries each client away from where it began, and whether clients pull together."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headway.analysis.diagnostics.finding import Finding
from headway.analysis.diagnostics.subject import Subject
from headway.analysis.plotting.style import BLUE, COSINES, ORANGE, Floats, blank, heat_map, label, tick_names
from headway.base.tree import Tree
from headway.metrics.geometry import finite_or_none, known_mean, mean_of_pairs
from headway.runs.directory import disk
from headway.training import rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 24  # layers that can be read in one figure
IN_MEMORY = 256 * 2**20  # bytes of updates; more of them rest on disk
ABOUT = (
    "How far one more round of local training (local epochs: {epochs}) carries each client: ||w_k - w|| / ||w||, layer "
    "by layer, where w is what the client starts from: {start}. At the right the cosine between clients' updates "
    "{over}: 1 where they pull the same way, 0 where they know nothing of each other, below 0 where they undo each "
    "other."
)


def layer_of(name: str) -> str:
    """`body.layer1.0.conv1.weight` -> `body.layer1.0.conv1`."""
    return name.rpartition(".")[0] or name


def layer_norms(tree: Tree) -> dict[str, float]:
    """||w|| of each layer: all its tensors taken as one vector."""
    squares: dict[str, float] = {}
    for name, v in tree.items():
        squares[layer_of(name)] = squares.get(layer_of(name), 0.0) + float(v.double().square().sum())
    return {layer: value**0.5 for layer, value in squares.items()}


def together(norms: Mapping[str, float], group: Mapping[str, str]) -> dict[str, float]:
    """Norms of groups of layers: the root of the sum of squares."""
    squares: dict[str, float] = {}
    for layer, norm in norms.items():
        squares[group[layer]] = squares.get(group[layer], 0.0) + norm**2
    return {name: value**0.5 for name, value in squares.items()}


def relative(moved: Sequence[Mapping[str, float]], begun: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """||w_k - w|| / ||w|| by layer, one number a client; NaN where the layer was zero."""
    return {
        layer: np.array([m[layer] / b[layer] if b[layer] > 0 else np.nan for m, b in zip(moved, begun, strict=True)])
        for layer in moved[0]
    }


def cosines(updates: Tensor, block: int = 1 << 20) -> Floats:
    """cos(Delta_k, Delta_j) of updates [K, P], summed in float64, [K, K]; NaN beside a client that did not move."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for start in range(0, updates.shape[1], block):
        part = updates[:, start : start + block].double()
        total += part @ part.T
    size = total.diagonal().sqrt()
    found: Floats = (total / (size[:, None] * size)).clamp(-1, 1).numpy()
    return found


def coarser(names: Sequence[str], most: int = MOST_ROWS) -> dict[str, str]:
    """Layer -> the row that shows it: its own while there are few, else the outermost parts of its name."""
    for depth in range(max(n.count(".") for n in names) + 1, 0, -1):
        rows = {n: ".".join(n.split(".")[:depth]) for n in names}
        if len(set(rows.values())) <= most:
            break
    return rows


def drift(subject: Subject) -> Finding:
    """||w_k - w^t|| by layer and client, and the cosines between client updates."""
    saved, clients = subject.saved, list(subject.clients)
    cast = rounds.cast_of(saved.server, saved.recipe)
    moved: list[dict[str, float]] = []
    begun: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        updates: Tensor | None = None
        for i, local in enumerate(subject.local_models()):
            client = saved.engine.client(saved.recipe, subject.task, cast, local.client)
            w = local.net.params().map(Tensor.detach)
            start = (client.personal | cast.w).only(w.__contains__)
            delta = w - start
            moved.append(layer_norms(delta))
            begun.append(layer_norms(start))
            counted = delta.only(cast.w.__contains__) or delta  # what no client shares has no common start
            flat = torch.cat([v.flatten().float().cpu() for v in counted.values()])
            updates = space(len(clients), len(flat), Path(folder)) if updates is None else updates
            updates[i] = flat
        assert updates is not None
        angles = cosines(updates)
        del updates
    return finding(subject, clients, moved, begun, angles)


def space(clients: int, size: int, folder: Path) -> Tensor:
    """Room for all updates, [K, P]: in memory, or in a file where they are large."""
    if 4 * clients * size <= IN_MEMORY:
        return torch.empty(clients, size)
    with disk(folder / "updates"):
        return torch.from_numpy(np.memmap(folder / "updates", dtype=np.float32, mode="w+", shape=(clients, size)))


def finding(
    subject: Subject,
    clients: Sequence[int],
    moved: Sequence[dict[str, float]],
    begun: Sequence[dict[str, float]],
    angles: Floats,
) -> Finding:
    names = list(subject.saved.server.w)
    shared = {layer_of(name) for name in names if subject.saved.recipe.share(name)}
    by_layer = relative(moved, begun)
    table: list[dict[str, Any]] = [
        {
            "layer": layer, "client": k, "held_by": "all" if layer in shared else "the client",
            "moved": moved[i][layer], "norm_before": begun[i][layer], "relative": finite_or_none(values[i]),
        }
        for layer, values in by_layer.items()
        for i, k in enumerate(clients)
    ]  # fmt: skip
    pairs = [
        {"client": a, "other": b, "cosine": finite_or_none(angles[i, j])}
        for i, a in enumerate(clients)
        for j, b in enumerate(clients)
        if i < j
    ]
    part = {layer: layer.partition(".")[0] for layer in by_layer}
    parts, drawn = (
        relative([together(m, group) for m in moved], [together(b, group) for b in begun])
        for group in (part, coarser(list(by_layer)))
    )
    known = {layer: m for layer, values in by_layer.items() if (m := known_mean(values)) is not None}
    summary: dict[str, Any] = {
        "mean relative drift of the body": known_mean(parts["body"]) if "body" in parts else None,
        "mean relative drift of the head": known_mean(parts["head"]) if "head" in parts else None,
        "layer that moves furthest": max(known, key=lambda layer: known[layer]) if known else None,
        "mean cosine of client updates": mean_of_pairs(angles),
        "clients": len(clients),
    }
    own = "its own model, for this recipe shares nothing"
    if shared:
        own = "the global model" + ("" if shared >= by_layer.keys() else ", and its own layers where they are personal")
    over = "over shared parameters" if shared else "over all parameters"
    means = ", ".join(f"{name} {m:.2g}" for name, values in drawn.items() if (m := known_mean(values)) is not None)
    return Finding(
        "drift",
        "Drift of clients in local training",
        ABOUT.format(epochs=subject.task.epochs, start=own, over=over),
        summary,
        {"layers": table} | ({"cosines": pairs} if pairs else {}),
        f"Heat map of relative drift by layer and client with the mean over clients ({means}), and the cosines between "
        f"{len(clients)} clients' updates.",
        lambda: draw(drawn, angles, clients),
    )


def draw(drawn: dict[str, Floats], angles: Floats, clients: Sequence[int]) -> Figure:
    """Layers by clients, their means as bars at the side, and the cosines between updates."""
    names, ids = list(drawn), [str(k) for k in clients]
    values = np.stack([drawn[name] for name in names])  # [layers, K]
    figure = blank(13, max(4.2, 0.3 * len(names) + 1.6))
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.25, 0.6, 1.1))
    top = float(np.nanmax(values, initial=0.0)) or 1.0
    image = heat_map(left, values, len(clients) <= 12, vmin=0.0, vmax=top, cmap="cividis")
    left.set_title("||w_k - w|| / ||w||", fontsize=10)
    tick_names(left.xaxis, ids, 20)
    left.set_yticks(range(len(names)), [label(n, 34) for n in names])
    left.set(xlabel="client", ylabel="layer, from input to output")
    figure.colorbar(image, ax=left, label="relative drift", shrink=0.9)
    bars = [np.nan if (m := known_mean(v)) is None else m for v in values]
    tints = [ORANGE if n.startswith("head") else BLUE for n in names]
    middle.barh(range(len(names)), bars, color=tints)
    middle.set_ylim(len(names) - 0.5, -0.5)
    middle.set_yticks([])
    middle.set_title("mean over clients", fontsize=10)
    middle.set_xlabel("relative drift\n(blue: body, orange: head)")
    middle.spines[["top", "right"]].set_visible(False)
    image = heat_map(right, angles, len(clients) <= 12, **COSINES)
    right.set_title("cosine between clients' updates", fontsize=10)
    right.set(xlabel="client", ylabel="client")
    tick_names(right.xaxis, ids, 20)
    tick_names(right.yaxis, ids, 20)
    figure.colorbar(image, ax=right, label="cosine", shrink=0.9)
    return figure
