"""TensorBoard: event files in RUN/tensorboard, a curve for every number of metrics.jsonl."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.runs.tracking import Journal, Row, end_figures, numbers, settings_of

EVENTS = "events.out.tfevents."  # the start of the names of event files


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
        # purge_step: readers drop what an earlier file has from that round on: an incomplete round, an earlier end
        self.writer = SummaryWriter(str(self.folder), purge_step=known + 1 if earlier else None)
        if not known:
            settings = settings_of(config)
            lines = [f"| {key} | `{value.replace('`', ' ').replace('|', ' ')}` |" for key, value in settings.items()]
            self.writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]), 0)
            for part in hparams(settings, {"global_acc": 0.0}):  # the HPARAMS page: settings beside the last accuracy
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
    """Wait until a new file's name sorts last: names hold the second, and files are read in their order."""
    stamp = last.removeprefix(EVENTS).split(".")[0]
    until = time.monotonic() + 2  # at most: the clock may have been set back
    while f"{int(time.time()):010d}" <= stamp and time.monotonic() < until:
        time.sleep(0.02)
