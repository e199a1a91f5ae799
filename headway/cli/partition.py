"""`headway partition`: which client gets which data, without training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.base.errors import CheckpointError, ConfigError
from headway.base.lazy import LazyModule
from headway.cli.help import declare
from headway.cli.options import PARTITION, partition_options
from headway.cli.output import emit, plain_table
from headway.cli.values import out_in, seeds_in, task_values
from headway.training.settings import settings

if TYPE_CHECKING:
    from headway.analysis.plotting import partition as plotting
    from headway.data import Dataset
    from headway.data.partitions import partition as partitions
    from headway.runs import directory
    from headway.training import task
else:  # torch and matplotlib come with them
    plotting = LazyModule("headway.analysis.plotting.partition")
    partitions = LazyModule("headway.data.partitions.partition")
    directory, task = LazyModule("headway.runs.directory"), LazyModule("headway.training.task")


@declare("partition", *partition_options())
def command(**given: Any) -> None:
    """Draw, save, describe and plot a partition; no training."""
    if (seeds := seeds_in(given["seeds"], given["seed"])) is not None:
        raise ConfigError(f"seeds={given['seeds']}: a partition is drawn from one seed; use --seed {seeds[0]}")
    out = out_in(given["out"])
    built = task.build(settings(task_values(given, PARTITION)))
    drawn = DrawnPartition(built.partition, built.dataset)
    if out:
        drawn.check_place(out, given["overwrite"])
        directory.prepare_folder(out)
        drawn.save(out)
    emit(given["as_json"], drawn.record() if given["as_json"] else None, lambda c: drawn.print(c, out))


@dataclass(frozen=True)
class DrawnPartition:
    """A partition with what is needed to describe it."""

    partition: partitions.Partition
    dataset: Dataset

    def check_place(self, out: Path, overwrite: bool) -> None:
        """Neither a run nor another saved partition is written over."""
        if (out / "config.json").exists():
            raise CheckpointError(f"out={out}: it holds a run, whose partition.json is its own; choose another --out")
        if (out / "partition.json").exists() and not overwrite:
            found = directory.read_json(out / "partition.json")
            if not isinstance(found, dict) or found.get("hash") != self.partition.hash():
                raise CheckpointError(
                    f"out={out}: it holds another partition; choose another --out, or --overwrite to replace it"
                )

    def save(self, out: Path) -> None:
        labels = self.dataset.y.numpy()
        self.partition.save(out / "partition.json", labels)
        title = f"{self.dataset.name}, {self.partition.spec}, seed {self.partition.seed}"
        plotting.plot(self.partition, labels, out / "partition.png", self.dataset.class_names, title)

    def record(self) -> dict[str, Any]:
        p, labels = self.partition, self.dataset.y.numpy()
        facts = {"spec": p.spec, "seed": p.seed, "hash": p.hash(), "notes": p.notes}
        return facts | {"counts": p.counts(labels).tolist(), "describe": partitions.describe(p, labels)}

    def print(self, console: Console, out: Path | None) -> None:
        labels = self.dataset.y.numpy()
        header, *body = plotting.rows(self.partition, labels)
        table = plain_table(*header)
        for line in body:
            table.add_row(*line)
        console.print(f"{self.dataset.name}, {self.partition.spec}, seed {self.partition.seed}", markup=False)
        console.print(table)
        # JSON keeps the two apart by where they stand: how many clients are empty, and which
        facts = renamed(partitions.describe(self.partition, labels), "empty", "empty_clients")
        facts |= renamed(self.partition.notes, "empty", "empty_client_ids")
        for name, value in facts.items():
            console.print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}", markup=False)
        console.print(f"hash: {self.partition.hash()}")
        if out:
            console.print(f"saved: {out / 'partition.json'}, {out / 'partition.png'}", markup=False)


def renamed(facts: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    return {name if k == key else k: v for k, v in facts.items()}
