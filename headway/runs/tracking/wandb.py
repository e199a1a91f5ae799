"""Weights & Biases, as its WANDB_ variables say; offline files wait in runs/wandb for `wandb sync`."""

from __future__ import annotations

import netrc
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headway.runs.tracking import SHARED, Journal, Row, end_figures, numbers, settings_of

PROJECT = "headway"


def open_tracker(out: Path) -> Wandb:
    return Wandb(out)


class Wandb:
    """One W&B run a run directory; its id is in RUN/tracking, so that a continued run is added to it."""

    def __init__(self, out: Path):
        self.out, self.journal = out, Journal(out, "wandb")

    def begin(self, config: Mapping[str, Any]) -> int:
        import wandb

        notes, known = self.journal.read()
        folder = Path(os.environ.get("WANDB_DIR") or SHARED)
        folder.mkdir(parents=True, exist_ok=True)
        offline = not os.environ.get("WANDB_MODE") and not has_login(wandb.setup().settings)
        if offline:
            say_offline(folder)
        self.run = wandb.init(
            mode="offline" if offline else None,
            id=notes.get("id"),
            resume="allow" if notes else None,
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=os.environ.get("WANDB_NAME") or str(config["label"]),
            dir=str(folder),
            config=settings_of(config) | {"headway": config["versions"]["headway"], "run": str(self.out)},
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
            reinit="create_new",  # several runs of a comparison are tracked in one process
        )
        if not notes:
            self.journal.start({"id": self.run.id})
        return known

    def round(self, row: Row) -> None:
        # W&B writes in a process of its own, which outlives this one: what it received will be written
        self.run.log({"round": row["round"], **dict(numbers(row))}, step=row["round"])
        self.journal.add(row["round"])

    def end(self, summary: Mapping[str, Any], done: int) -> None:
        for name, value in end_figures(summary).items():
            self.run.summary[name] = value
        for name in ("config.json", "summary.json", "model.safetensors"):
            copy = shutil.copy(self.out / name, self.run.dir)  # a link would show the files of a run made again
            self.run.save(copy, base_path=self.run.dir, policy="now")
        self.run.finish(exit_code=1 if summary["failed"] else 0)

    def close(self) -> None:
        self.run.finish()  # a second call does nothing


def has_login(known: Any) -> bool:
    """Whether W&B has a login, or was set to another mode; without either it would track nothing."""
    if getattr(known, "mode", None) not in (None, "online") or getattr(known, "api_key", None):
        return True
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    address = os.environ.get("WANDB_BASE_URL") or getattr(known, "base_url", None) or "https://api.wandb.ai"
    given = os.environ.get("NETRC")
    for file in [Path(given)] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            if netrc.netrc(file).authenticators(urlsplit(address).hostname or ""):
                return True
    return False


@cache
def say_offline(folder: Path) -> None:
    """Print a note, once a process."""
    print(
        f"headway: note: wandb has no API key, so it tracks offline; `wandb login`, then "
        f"`wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*` sends it",
        file=sys.stderr,
    )
