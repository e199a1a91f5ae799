"""Checkpoints: a run killed at any moment continues bit for bit.

A checkpoint is a manifest that names its files with their SHA-256: the server, and packs of clients. A pack holds the
clients that changed since the last checkpoint; older packs are named again. A pack whose clients mostly have newer
values elsewhere is replaced by a smaller one. The manifest is written last, so a checkpoint is complete or does not
exist. The last two are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headway.base.errors import CheckpointError
from headway.base.serialise import read_raw, to_bytes, write_atomic
from headway.core.state import Client, Server, nbytes
from headway.engines.store import ClientStore
from headway.runs.directory import NEW_FOLDER
from headway.runs.identity import check_same

if TYPE_CHECKING:
    from headway.core.recipe import Recipe
    from headway.training.task import Task

FORMAT = 1
KEEP = 2
MOST_PACKS = 12  # from so many small packs on, they are merged into large ones
PACK_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Checkpoint:
    """The state a run continues from."""

    server: Server
    packs: Callable[[], Iterator[list[Client]]]  # read one after another: all at once may not fit into memory
    extra: dict[str, Any]

    def fill(self, store: ClientStore) -> None:
        """Put all clients into an empty store, a pack at a time: the store decides what stays in memory."""
        for pack in self.packs():
            store.put(pack)
        store.changed.clear()  # they are in the checkpoint


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]):
        self.folder = folder
        self.identity = dict(identity)  # recipe and task: a checkpoint of another one is refused
        self._where: dict[int, str] = {}  # client -> the pack that holds its latest value
        self._hashes: dict[str, str] = {}  # pack -> sha256
        self._held: dict[str, int] = {}  # pack -> clients it was written with; some may have a newer value elsewhere

    def save(self, server: Server, store: ClientStore, extra: Mapping[str, Any]) -> None:
        """Write a checkpoint; until its manifest is written the last one counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tag = f"{server.round:06d}"
        for pack in self._packs(store, self._due(store.changed)):
            name = self._unused(f"clients-{tag}")
            self._hashes[name], self._held[name] = self._write(name, {"clients": pack}), len(pack)
            self._where.update({client.id: name for client in pack})
        server_file = f"server-{tag}.safetensors"
        live = set(self._where.values())
        self._hashes = {name: h for name, h in self._hashes.items() if name in live}
        self._held = {name: n for name, n in self._held.items() if name in live}
        manifest = {
            "format": FORMAT,
            "round": server.round,
            "identity": self.identity,
            "server": server_file,
            "clients": {str(k): name for k, name in sorted(self._where.items())},
            "held": self._held,
            "files": {server_file: self._write(server_file, server), **self._hashes},
            "extra": dict(extra),
        }
        body = json.dumps(manifest, indent=1)
        write_atomic(
            self.folder / f"round-{tag}.json",
            json.dumps({"sha256": _sha(body.encode()), "manifest": manifest}, indent=1),
        )
        store.changed.clear()
        self._tidy(server.round)

    def load(self, device: torch.device) -> tuple[Checkpoint | None, list[str]]:
        """The newest complete checkpoint, and the newer ones that are damaged."""
        damaged: list[str] = []
        for path in sorted(self.folder.glob("round-*.json"), reverse=True):
            try:
                return self._read(path, device), damaged
            except (CheckpointError, OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, OtherTask):
                    raise
                damaged.append(f"{path.stem} ({error})")
        return None, damaged

    def restore(self, recipe: Recipe, task: Task, say: Callable[[str], None]) -> Checkpoint | None:
        """The newest complete checkpoint, ready to continue from; damaged ones are reported.

        Statistics of the model that an older version of headway did not save get their first values.
        """
        found, damaged = self.load(task.device)
        for what in damaged:
            say(f"checkpoint {what} is damaged and was passed over")
        if not found:
            return None
        stats = task.first_stats(recipe) | found.server.stats
        if stats.keys() == found.server.stats.keys():
            return found
        return replace(found, server=replace(found.server, stats=stats))

    def _read(self, path: Path, device: torch.device) -> Checkpoint:
        both = json.loads(path.read_text())
        manifest = both["manifest"]
        if both["sha256"] != _sha(json.dumps(manifest, indent=1).encode()):
            raise CheckpointError("its manifest was edited")
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"its format is {manifest['format']} and this headway reads {FORMAT}")
        check_same(
            manifest["identity"],
            self.identity,
            "the checkpoint belongs to another task",
            f"put back the files that belong together, or {NEW_FOLDER}",
            OtherTask,
        )
        for name, wanted in manifest["files"].items():
            if _sha((self.folder / name).read_bytes()) != wanted:
                raise CheckpointError(f"{name} is not what was written")
        server = Server(**read_raw(self.folder / manifest["server"], device))
        where = {int(k): name for k, name in manifest["clients"].items()}

        def packs() -> Iterator[list[Client]]:
            for name in sorted(set(where.values())):
                found = read_raw(self.folder / name, device)["clients"]
                yield [Client(**fields) for fields in found if where.get(fields["id"]) == name]

        self._where = dict(where)
        self._hashes = {name: h for name, h in manifest["files"].items() if name != manifest["server"]}
        self._held = dict(manifest.get("held", {}))
        return Checkpoint(server, packs, manifest["extra"])

    def _due(self, changed: Iterable[int]) -> list[int]:
        """Clients to write: those that changed, and those in packs that are mostly outdated or among many small ones.

        So a client that does not change is written a few times at most, however many clients and rounds there are.
        """
        due = set(changed)
        live: dict[str, list[int]] = {}
        for k, name in self._where.items():
            if k not in due:
                live.setdefault(name, []).append(k)
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("clients-*")}
        small = [name for name in live if sizes.get(name, 0) < PACK_BYTES // 2]
        again = small if len(small) >= MOST_PACKS else []
        again += [name for name, ids in live.items() if 2 * len(ids) < self._held.get(name, 0)]
        return sorted(due.union(*(live[name] for name in again)))

    def _packs(self, store: ClientStore, ids: list[int]) -> Iterator[list[Client]]:
        pack: list[Client] = []
        size = 0
        for k in ids:
            client = store.get(k)
            if client is not None:
                pack.append(client)
                size += client.personal.nbytes() + client.momentum.nbytes() + nbytes(client.kept)
            if size > PACK_BYTES:
                yield pack
                pack, size = [], 0
        if pack:
            yield pack

    def _unused(self, stem: str) -> str:
        """A name that no file has: a second checkpoint of a round must not write over a pack that is in use."""
        names = (f"{stem}-{number}.safetensors" for number in count())
        return next(name for name in names if not (self.folder / name).exists())

    def _write(self, name: str, value: Any) -> str:
        data = to_bytes(value)
        write_atomic(self.folder / name, data)
        return _sha(data)

    def _tidy(self, done: int) -> None:
        """Delete files that no kept manifest names, and temporary files of a write that was killed."""
        manifests = sorted(self.folder.glob("round-*.json"))
        newer = [p for p in manifests if p.stem > f"round-{done:06d}"]  # damaged, and passed over by `load`
        for path in newer:
            path.unlink(missing_ok=True)
        manifests = manifests[: len(manifests) - len(newer)]
        named: set[str] = set()
        for path in manifests[-KEEP:]:
            try:
                named |= set(json.loads(path.read_text())["manifest"]["files"])
            except (ValueError, KeyError, TypeError):
                continue  # a damaged older manifest names nothing
        for path in manifests[:-KEEP]:
            path.unlink(missing_ok=True)
        for path in [*self.folder.glob("*.safetensors"), *self.folder.glob(".*.tmp")]:
            if path.name not in named:
                path.unlink(missing_ok=True)


class OtherTask(CheckpointError):
    """The checkpoint is complete and belongs to another recipe, task or data."""


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
