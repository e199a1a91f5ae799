"""What clients remember, kept only for those that have something to remember: in memory, or in a directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from headway.state import Client
from headway.values import read_raw, write_values


class ClientStore:
    """Clients by id, in memory. A client that remembers nothing is not stored."""

    def __init__(self) -> None:
        self._clients: dict[int, Client] = {}
        self.changed: set[int] = set()  # since the last checkpoint

    def ids(self) -> list[int]:
        return sorted(self._clients)

    def get(self, k: int) -> Client | None:
        return self._clients.get(k)

    def put(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if not client.blank:
                self._clients[client.id] = client
                self.changed.add(client.id)


class DirectoryStore(ClientStore):
    """The same in a folder, one file a client: memory stays flat however many have taken part.

    The folder is working space, not a promise: what must survive a crash is in the checkpoint.
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

    def get(self, k: int) -> Client | None:
        if k not in self._ids:
            return None
        return Client(**read_raw(self.folder / f"{k}.safetensors", self.device))

    def put(self, clients: Iterable[Client]) -> None:
        for client in clients:
            if not client.blank:
                write_values(self.folder / f"{client.id}.safetensors", client)
                self._ids.add(client.id)
                self.changed.add(client.id)
