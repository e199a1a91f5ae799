"""TensorBoard: event files in RUN/tensorboard, a curve for every number of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.tracking import Journal, Row, end_figures, numbers, settings_of

EVENTS = "events.out.tfevents."  # how the names of event files begin


def open_tracker(out: Path) -> TensorBoard:
    return TensorBoard(out)


class TensorBoard:
    """Writes through the `tensorboard` package; every process adds a file of its own."""

    def __init__(self, out: Path):
        self.folder, self.journal = out / "tensorboard", Journal(out, "tensorboard")

    def begin(self, config: Mapping[str, Any]) -> int:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        notes, known = self.journal.read()
        earlier = sorted(p.name for p in self.folder.glob(f"{EVENTS}*")) if self.folder.is_dir() else []
        if not earlier or not notes:
            known = 0
            self.journal.start({"tensorboard": str(self.folder.name)})
        else:
            wait_for_a_later_name(earlier[-1])
        # readers forget what an earlier file says of the steps from here on: a round half told, an end told before
        self.writer = SummaryWriter(str(self.folder), purge_step=known + 1 if earlier else None)
        if not known:
            asked = settings_of(config)
            lines = [f"| {key} | `{value.replace('`', ' ').replace('|', ' ')}` |" for key, value in asked.items()]
            self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]), 0)
            for part in hparams(asked, {"global_acc": 0.0}):  # the HPARAMS page: settings beside the last accuracy
                self.writer.file_writer.add_summary(part)
            self.writer.flush()
        return known

    def round(self, row: Row) -> None:
        for name, value in numbers(row):
            self.writer.add_scalar(name, value, row["round"])
        self.writer.flush()
        self.journal.add(row["round"])

    def end(self, summary: Mapping[str, Any], done: int) -> None:
        for name, value in end_figures(summary).items():
            self.writer.add_scalar(name, value, done)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def wait_for_a_later_name(last: str) -> None:
    """Files are read in the order of their names, which hold the second they were made in."""
    stamp = last.removeprefix(EVENTS).split(".")[0]
    until = time.monotonic() + 2  # a clock that was set back is not waited for
    while f"{int(time.time()):010d}" <= stamp and time.monotonic() < until:
        time.sleep(0.02)
