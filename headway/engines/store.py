"""Stores of client states: in memory, on disk, or both. A client without a state is not stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from headway.base.errors import DiskError
from headway.base.serialise import read_raw, write_values
from headway.base.wording import resume_call
from headway.core.state import Client


class ClientStore:
    """Client states by client id, in memory. A client without a state is not stored."""

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self.changed: set[int] = set()  # since the last checkpoint

    def ids(self) -> list[int]:
        return sorted(self._clients)

    def __contains__(self, k: int) -> bool:
        """Whether the client has a state; reads nothing from disk."""
        return k in self._clients

    def get(self, k: int) -> Client | None:
        return self._clients.get(k)

    def put(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if not client.blank or client.id in self:  # a blank state replaces an earlier one
                self._clients[client.id] = client
                self.changed.add(client.id)


class SpillingStore(ClientStore):
    """Client states in memory up to `budget` bytes; beyond it, the clients that trained longest ago are moved to disk.

    Which clients are on disk does not change any result.
    """

    def __init__(self, folder: Path, budget: int, device: torch.device | None = None) -> None:
        super().__init__()
        self.budget, self.device = budget, device
        self.folder = folder
        self._disk: DirectoryStore | None = None
        self._sizes: dict[int, int] = {}
        self._held = 0  # bytes in memory

    @property
    def disk(self) -> DirectoryStore:
        """Created at first use, as most runs never need it."""
        if self._disk is None:
            self._disk = DirectoryStore(self.folder, self.device)
        return self._disk

    def ids(self) -> list[int]:
        return sorted({*self._clients, *(self._disk.ids() if self._disk else [])})

    def __contains__(self, k: int) -> bool:
        return k in self._clients or (self._disk is not None and k in self._disk)

    def get(self, k: int) -> Client | None:
        if k in self._clients:
            return self._clients[k]
        return self._disk.get(k) if self._disk else None

    def put(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if client.blank and client.id not in self:
                continue
            self._clients.pop(client.id, None)  # so that it moves to the end: the order is oldest first
            self._clients[client.id] = client
            self._held += client.nbytes() - self._sizes.get(client.id, 0)
            self._sizes[client.id] = client.nbytes()
            self.changed.add(client.id)
            self._spill()

    def _spill(self) -> None:
        while self._held > self.budget and len(self._clients) > 1:
            k, oldest = next(iter(self._clients.items()))
            self.disk.keep(oldest)
            self._held -= self._sizes.pop(k)
            del self._clients[k]


class DirectoryStore(ClientStore):
    """Client states in a folder, one file per client: memory does not grow with the number of clients.

    The files are temporary: what must survive a crash is in the checkpoint.
    """

    def __init__(self, folder: Path, device: torch.device | None = None) -> None:
        super().__init__()
        self.folder, self.device = folder, device
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob("*.safetensors"):
            stale.unlink()
        self._ids: set[int] = set()

    def ids(self) -> list[int]:
        return sorted(self._ids)

    def __contains__(self, k: int) -> bool:
        return k in self._ids

    def get(self, k: int) -> Client | None:
        if k not in self._ids:
            return None
        return Client(**read_raw(self.folder / f"{k}.safetensors", self.device))

    def put(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if not client.blank or client.id in self:
                self.keep(client)

    def keep(self, client: Client) -> None:
        """Write one client's file, also when its state is blank."""
        try:
            write_values(self.folder / f"{client.id}.safetensors", client)
        except OSError as error:
            raise DiskError(
                f"the state of client {client.id} cannot be written to {self.folder} ({error.strerror}); "
                f"free space there, then {resume_call()} continues the run"
            ) from error
        self._ids.add(client.id)
        self.changed.add(client.id)
