"""Weights & Biases, as its WANDB_ variables say; offline files wait in runs/wandb for `wandb sync`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.tracking import SHARED, Journal, Row, end_figures, numbers, settings_of

PROJECT = "headway"


def open_tracker(out: Path) -> Wandb:
    return Wandb(out)


class Wandb:
    """One W&B run a run directory; its id is in RUN/tracking, so that a continued run goes on in it."""

    def __init__(self, out: Path):
        self.out, self.journal = out, Journal(out, "wandb")

    def begin(self, config: Mapping[str, Any]) -> int:
        import wandb

        notes, known = self.journal.read()
        folder = Path(os.environ.get("WANDB_DIR") or SHARED)
        folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            id=notes.get("id"),
            resume="allow" if notes else None,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or str(config["label"]),
            dir=str(folder),
            config=settings_of(config) | {"headway": config["versions"]["headway"], "run": str(self.out)},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
            reinit="create_new",  # runs of a comparison follow one another in one process
        )
        if not notes:
            self.journal.start({"id": self.run.id})
        return known

    def round(self, row: Row) -> None:
        # W&B writes in a process of its own, which outlives ours: what it has is as good as written
        self.run.log({"round": row["round"], **dict(numbers(row))}, step=row["round"])
        self.journal.add(row["round"])

    def end(self, summary: Mapping[str, Any], done: int) -> None:
        for name, value in end_figures(summary).items():
            self.run.summary[name] = value
        for name in ("config.json", "summary.json", "model.safetensors"):
            copy = shutil.copy(self.out / name, self.run.dir)  # a link would follow the run when it is made anew
            self.run.save(copy, base_path=self.run.dir, policy="now")
        self.run.finish(exit_code=1 if summary["failed"] else 0)

    def close(self) -> None:
        self.run.finish()  # once more does nothing
