"""The work of `headway reproduce` on a table, from its name to its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.analysis.reproduce import plan, trainings
from headway.analysis.reproduce.assumptions import assumptions
from headway.analysis.reproduce.protocols import PROTOCOLS
from headway.analysis.reproduce.table import TableResult, grouped
from headway.base.errors import ConfigError
from headway.runs.directory import check_writable, prepare_folder
from headway.runs.options import Options
from headway.training.settings import Settings

SHOWN = (  # the settings worth telling
    "data", "model", "train_size", "test_size", "partition", "clients", "sampling", "rounds", "epochs", "batch_size",
    "lr", "lr_decay", "momentum", "weight_decay", "augment", "normalise", "local_test", "merge_test",
)  # fmt: skip


def reproduce_table(
    name: str,
    rows: str | None,
    scale: str,
    changes: Mapping[str, Any],
    seeds: Sequence[int] | None,
    out: Path,
    options: Options,
    command: str,
) -> TableResult:
    """Train what a table needs, read it, and save both columns; finished runs in `out` are taken as they are."""
    found = plan.chosen(plan.published(name), rows)
    cells = plan.cells(found, scale, changes)
    if not cells:
        raise ConfigError(f"rows={rows}: no row of {name} with a method's name is left; name fewer words")
    seeds = tuple(seeds) if seeds else PROTOCOLS[found[0].paper].seeds[: 2 if scale == "cpu" else None]
    prepare_folder(out)
    check_writable(out / "runs")
    ours = trainings.measure(cells, seeds, out, options)
    result = TableResult(
        plan.table_name(found[0]), scale, command, tuple(seeds), common([cell.settings for cell in cells]),
        grouped(cells, ours), assumptions(cells), trainings.seconds(cells, seeds, out), dict(changes),
        len(found) - len(cells),
    )  # fmt: skip
    result.save(out)
    return result


def common(all_settings: Sequence[Settings]) -> dict[str, Any]:
    """What every cell's training has in common, of the settings worth telling."""
    first, *others = [s.model_dump() for s in all_settings]
    return {k: first[k] for k in SHOWN if first[k] is not None and all(s[k] == first[k] for s in others)}
