"""How a run is carried out: device, workers, engine, checkpoints, progress. None of it changes what a run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.base.errors import ConfigError, nearest
from headway.engines.options import EngineOptions
from headway.runs.tracking import names_of
from headway.runs.watched import WATCHED


class Progress:
    """Receives what a run reports while it works; the base class ignores it."""

    def begin(self, label: str, done: int, total: int) -> None: ...
    def client(self, done: int, total: int) -> None: ...
    def round(self, row: Mapping[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True)
class Options(EngineOptions):
    """How a run is carried out. The numbers it computes depend on `threads`, `device`, `native` and `tune` only."""

    progress: Progress = field(default_factory=Progress)
    native: str = "auto"  # C++ code where it helps and a compiler is found; off: torch alone; bits depend on it
    tune: bool = False  # choose the way to train by a short timing; bits depend on the choice
    checkpoint_seconds: float = 5.0  # a checkpoint after a round when the last one is older
    overwrite: bool = False
    watch: str | Sequence[str] = ()  # what is measured on the models after every evaluated round (monitor.py)
    track: tuple[str, ...] = ()  # trackers: tensorboard, mlflow, wandb

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.native not in ("auto", "off"):
            raise ConfigError(f"native={self.native}: C++ code is used where it helps, or not at all; use auto or off")
        object.__setattr__(self, "watch", watch_names(self.watch))
        object.__setattr__(self, "track", names_of(self.track))  # a tracker that is not installed is refused at once

    def record(self) -> dict[str, Any]:
        """The part of config.json's `options` that is known before the task is built."""
        kept: dict[str, Any] = {
            "address": self.address, "track": list(self.track) or None, "watch": list(self.watch) or None,
            "native": "off" if self.native == "off" else None, "tune": True if self.tune else None,
        }  # fmt: skip
        return {"engine": self.engine} | {key: value for key, value in kept.items() if value is not None}

    def as_recorded(self, saved: Mapping[str, Any], **instead: Any) -> Options:
        """These options with the device, engine, store and trackers of a run's config.json, save what is `instead`."""
        where = {key: saved[key] for key in ("device", "engine", "store")}
        where |= {key: saved.get(key) for key in ("address", "track")}
        return replace(self, overwrite=False, **where | settled(saved) | instead)

    def continuing(self, saved: Mapping[str, Any]) -> Options:
        """These options for a run that has begun with the `options` of its config.json."""
        return replace(self, **settled(saved), track=self.track or tuple(saved.get("track") or ()))


def settled(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What cannot change once a run has begun: its bits or the columns of its files depend on it."""
    return {"threads": saved["threads"], "watch": saved.get("watch", ())}


def watch_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """`norms,drift` or `all` as names, in the order of their columns."""
    parts = given.split(",") if isinstance(given, str) else list(given)
    names = [str(part).strip() for part in parts]
    for name in names:
        if name not in (*WATCHED, "all"):
            raise ConfigError(
                f"watch={name or repr(name)}: nothing of that name can be watched; {nearest(name, (*WATCHED, 'all'))}"
            )
    return tuple(name for name in WATCHED if name in names or "all" in names)
