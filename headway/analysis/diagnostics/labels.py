"""Who holds which labels: the skew that the run was trained under, as a picture and in a few numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headway.analysis.diagnostics.finding import Finding
from headway.analysis.plotting.partition import figure_of
from headway.analysis.plotting.style import one_line
from headway.data.partitions.partition import describe

if TYPE_CHECKING:
    from headway.analysis.diagnostics.subject import Subject

ABOUT = (
    "Training samples per client and class, as in FedETF's Figure 7, FedTC's Figure 4, CCVR's Figure 15. Divergence: "
    "the mean Jensen-Shannon divergence in bits between the label distributions of two clients, 0 alike, 1 nothing in "
    "common. Effective classes: the exponential of a client's label entropy, mean over clients. Gini: of the clients' "
    "sizes, 0 when all are equal. Clients without samples are left out of the label figures."
)
MOST_ROWS = 20_000


def labels(subject: Subject) -> Finding:
    """Label distributions of the clients: bubbles or a heat map, divergence, effective classes, Gini."""
    task, names = subject.task, subject.names
    held = task.local.train  # without what clients hold back for their own tests
    partition = replace(task.partition, index=held.index, offsets=held.offsets)
    y = task.dataset.y.numpy()
    facts = describe(partition, y)
    counts = subject.counts  # [K, C]
    table: list[dict[str, Any]] = [
        {"client": k, "class": name, "samples": int(counts[k, c])}
        for k in range(len(counts))
        for c, name in enumerate(names)
        if counts[k, c]
    ]
    tables = {"counts": table} if len(table) <= MOST_ROWS else {}  # partition.json has them all
    summary = {
        "js_divergence": facts["js_divergence"],
        "effective_classes": facts["effective_classes"],
        "size_gini": facts["size_gini"],
        "clients": facts["clients"],
        "samples": facts["samples"],
        "empty_clients": facts["empty"],
    }
    alt = (
        f"{facts['clients']} clients with {facts['size_min']} to {facts['size_max']} samples; "
        f"{facts['effective_classes']:.1f} effective classes of {subject.classes} on average, label divergence "
        f"{facts['js_divergence']:.2f}."
    )
    title = f"{task.dataset.name}, {task.partition.spec}, seed {task.seed}"
    return Finding(
        "labels", "Label distribution", ABOUT, summary, tables, alt,
        draw=lambda: figure_of(partition, y, [one_line(n, 24) for n in names], title, bubbles=True),
    )  # fmt: skip
