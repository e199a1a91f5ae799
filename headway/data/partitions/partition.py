"""Partitions: which training samples each client holds; drawn by seed, saved and checked as one file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.base.errors import PartitionError
from headway.base.serialise import write_atomic
from headway.base.wording import either
from headway.data.partitions import draws
from headway.data.partitions.packed import FEW, checksum, pack, pack_counts, unpack
from headway.data.partitions.spec import PARTITIONS, REGISTERED, Spec, brings_clients, parse, saved

__all__ = ["PARTITIONS", "Lists", "Partition", "checked_labels", "describe", "draw", "lists_of"]

Ints = npt.NDArray[np.int64]
FORMATS = ("headway partition 1", "headway partition 2")  # one entry per client; packed, for more than FEW clients
JS_CLIENTS = 500  # pairs grow with the square; 500 clients already give 124,750 of them


class _PerClient:
    """One list of sample positions per client, stored one after another."""

    index: Ints
    offsets: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, k: int) -> Ints:
        k = range(len(self))[k]  # negative k counts from the end; out of range is an IndexError
        return self.index[self.offsets[k] : self.offsets[k + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[k] for k in range(len(self)))

    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    @cached_property
    def able(self) -> Ints:
        """The clients that have samples."""
        return np.flatnonzero(self.sizes() > 0)

    def class_counts(self, labels: npt.NDArray[Any], classes: int) -> Ints:
        """Samples per client and class, [K, C], given the labels the positions point into."""
        y = checked_labels(labels, classes)
        client = np.repeat(np.arange(len(self)), self.sizes())
        flat = np.bincount(client * classes + y[self.index], minlength=len(self) * classes)
        return flat.reshape(len(self), classes)

    def packed_counts(self, labels: npt.NDArray[Any], classes: int) -> dict[str, Any]:
        """The same as columns for a file, without the zeros."""
        return pack_counts(self.index, self.offsets, checked_labels(labels, classes), classes)

    def hash(self) -> str:
        """sha256 over who holds what; the same whichever way it was drawn."""
        return self._hash

    @cached_property
    def _hash(self) -> str:
        return _sha256(self.offsets, self.index)

    def client_hash(self, k: int) -> str:
        return _sha256(self[k])


@dataclass(frozen=True, eq=False)
class Lists(_PerClient):
    """Sample positions per client, without how they were drawn."""

    index: Ints
    offsets: Ints


@dataclass(frozen=True, eq=False)
class Partition(_PerClient):
    """Sample positions per client. A client's positions keep the order of the draw: class after class,
    shuffled within a class (moved samples last); `natural` keeps the order of the data.

    `notes` always holds attempts, refilled, clients_refilled, dropped (samples that no client got) and
    empty (clients without samples); `note` is a sentence for the user, if there is one.
    """

    spec: str
    seed: int
    index: Ints
    offsets: Ints
    classes: int
    labels_hash: str
    notes: dict[str, Any]

    def counts(self, labels: npt.NDArray[Any]) -> Ints:
        """Samples per client and class, [K, C]."""
        return self.class_counts(labels, self.classes)

    def save(self, path: Path, labels: npt.NDArray[Any] | None = None) -> None:
        """One JSON file, whole or not at all; with `labels` it also shows the counts per client and class.

        With more than FEW clients the positions are packed (packed.py).
        """
        many = len(self) > FEW
        body: dict[str, Any] = {
            "format": FORMATS[many],
            "spec": self.spec,
            "seed": self.seed,
            "classes": self.classes,
            "labels_hash": self.labels_hash,
            "hash": self.hash(),
            "notes": self.notes,
            "clients": self._packed() if many else [part.tolist() for part in self],
        }
        if labels is not None:
            body["counts"] = self.packed_counts(labels, self.classes) if many else self.counts(labels).tolist()
        body["checksum"] = checksum(body)
        write_text(Path(path), json.dumps(body))

    def _packed(self) -> dict[str, Any]:
        return {"number": len(self), "sizes": pack(self.sizes()), "positions": pack(self.index)}

    @classmethod
    def load(cls, path: Path, labels: npt.NDArray[Any]) -> Partition:
        """The partition saved at `path`, if the file is whole and was drawn on these labels."""
        path = Path(path)
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise PartitionError(
                f"partition file '{path}' cannot be read ({error.strerror or error}); check the path"
            ) from error
        except (ValueError, RecursionError) as error:
            raise PartitionError(f"partition file '{path}' is not JSON; draw the partition again") from error
        if not isinstance(body, dict) or body.get("format") not in FORMATS:
            how = either(python="task.partition.save(path)", command="`headway partition --out`")
            raise PartitionError(
                f"partition file '{path}' holds no saved partition (a run's own file has counts, not indices); "
                f"save one with {how}"
            )
        damaged = PartitionError(
            f"partition file '{path}' is damaged or was edited (its checksum differs); draw it again"
        )
        if body.pop("checksum", None) != checksum(body):
            raise damaged
        try:
            index, offsets = _held(body["clients"])
            meta = (body["spec"], body["seed"], body["classes"], body["labels_hash"], body["notes"])
            y = checked_labels(labels, 2**62)  # labels of other data may well be outside this one's classes
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged from error
        if meta[3] != _sha256(y):
            raise PartitionError(
                f"partition file '{path}' was drawn on other labels than these {len(y)}; "
                "give the data it was drawn on or draw the partition again"
            )
        found = cls(meta[0], meta[1], index, offsets, *meta[2:])
        in_range = len(index) == 0 or (index.min() >= 0 and index.max() < len(y))
        once = in_range and np.bincount(index, minlength=1).max() <= 1
        if not once or found.hash() != body["hash"]:
            raise damaged
        return found


def draw(
    spec: str,
    labels: npt.NDArray[Any],
    clients: int | None,
    seed: int,
    *,
    classes: int,
    group: npt.NDArray[Any] | None = None,
) -> Partition:
    """Deal the samples to the clients as `spec` says; a path to a saved .json, or its folder, is loaded instead.

    Without a number of clients `natural` takes all groups, and a saved partition brings its own.
    """
    if clients is not None or not brings_clients(spec):
        clients = _whole("clients", clients)
    classes = _whole("classes", classes)
    if file := saved(spec):
        return _loaded(file, labels, clients, classes)
    asked = parse(spec)
    y = checked_labels(labels, classes)
    if clients is not None and clients > len(y) and asked.name == "iid":  # the others know more of what they need
        raise PartitionError(
            f"{asked.name}: {clients} clients need at least {clients} samples and there are {len(y)}; "
            f"{draws.fewer_clients(len(y)) or 'add samples'}"
        )
    if clients is None or asked.name == "natural":
        deal, clients = draws.natural(group, len(y), clients, seed)
    else:
        deal = _deal(asked, y, clients, classes, seed)
    lists = lists_of(deal.pool, deal.owner, clients)
    notes = {"attempts": 1, "refilled": 0, "clients_refilled": 0} | deal.notes
    notes |= {"dropped": len(y) - len(lists.index), "empty": np.flatnonzero(lists.sizes() == 0).tolist()}
    if empty := len(notes["empty"]):
        dropped = asked.values.get("empty") == "drop"
        outcome = "were empty and dropped" if dropped else "have no samples and never take part"
        notes["note"] = f"{empty} of {clients} clients {outcome}"
    return Partition(asked.text, int(seed), lists.index, lists.offsets, classes, _sha256(y), notes)


def _deal(asked: Spec, y: Ints, clients: int, classes: int, seed: int) -> draws.Deal:
    match asked.name:
        case "iid":
            return draws.iid(y, clients, classes, seed)
        case "dir":
            return draws.dirichlet(asked, y, clients, classes, seed)
        case "shard":
            return draws.shard(asked, y, clients, classes, seed)
        case "classes":
            return draws.classes_each(asked, y, clients, classes, seed)
        case name if name in REGISTERED:
            return draws.registered(asked, REGISTERED[name], y, clients, classes, seed)
        case name:
            raise AssertionError(f"partition {name} is listed in spec.py and has no branch here")


def lists_of(pool: Ints, owner: Ints, clients: int) -> Lists:
    """Positions grouped by owner, each client's in the order of the pool; negative owners get left out."""
    if len(owner) and owner.min() < 0:
        kept = owner >= 0
        pool, owner = pool[kept], owner[kept]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))]).astype(np.int64)
    return Lists(pool[np.argsort(owner, kind="stable")], offsets)


def describe(p: Partition, labels: npt.NDArray[Any]) -> dict[str, Any]:
    """How skewed it is, in a few numbers. Label figures leave empty clients out."""
    counts = p.counts(labels)
    sizes = p.sizes()
    held = counts[sizes > 0]
    mixes = held / held.sum(axis=1, keepdims=True)
    per_client = (held > 0).sum(axis=1)
    return {
        "clients": len(p),
        "samples": len(p.index),
        "size_min": int(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": int(sizes.max()),
        "classes_min": int(per_client.min()),
        "classes_mean": float(per_client.mean()),
        "classes_max": int(per_client.max()),
        "effective_classes": float(np.exp(_entropy(mixes)).mean()),
        "js_divergence": _mean_js(mixes),
        "size_gini": _gini(sizes),
        "empty": int((sizes == 0).sum()),
    }


def _loaded(path: Path, labels: npt.NDArray[Any], clients: int | None, classes: int) -> Partition:
    found = Partition.load(path, labels)
    if clients is not None and len(found) != clients:
        raise PartitionError(
            f"clients is {clients} and partition file '{path}' holds {len(found)}; "
            f"set clients={len(found)} or leave it out"
        )
    if found.classes != classes:
        raise PartitionError(
            f"partition file '{path}' was drawn for {found.classes} classes and the data has {classes}; "
            "draw the partition again"
        )
    return found


def _held(clients: Any) -> tuple[Ints, Ints]:
    """Positions and offsets, as a file holds them: a list per client, or packed."""
    if isinstance(clients, dict):
        sizes, index = unpack(clients["sizes"]), unpack(clients["positions"])
    else:
        parts = [np.asarray(part, dtype=np.int64) for part in clients]
        sizes, index = np.array([len(part) for part in parts], dtype=np.int64), np.concatenate(parts)
    if sizes.sum() != len(index):
        raise ValueError("clients")
    return index, np.concatenate([[0], np.cumsum(sizes)])


def _whole(field: str, value: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise PartitionError(f"{field} is {value!r} and must be a whole number, 1 or more")
    return int(value)


def checked_labels(labels: npt.NDArray[Any], classes: int) -> Ints:
    """The labels as int64 in [0, classes), or a refusal that names the first bad one."""
    y = np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        raise PartitionError(f"labels have shape {y.shape} and type {y.dtype}; give one whole number per sample")
    with np.errstate(invalid="ignore"):
        whole = y.astype(np.int64, copy=False)
    if len(bad := np.flatnonzero((whole != y) | (whole < 0) | (whole >= classes))):
        raise PartitionError(
            f"label {y[bad[0]]} at sample {bad[0]} is not a class; labels must be whole numbers from 0 to {classes - 1}"
        )
    return whole


def _entropy(mixes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Natural-log entropy of each row."""
    logs = np.log(mixes, out=np.zeros_like(mixes), where=mixes > 0)
    entropy: npt.NDArray[np.float64] = -(mixes * logs).sum(axis=1)
    return entropy


def _mean_js(mixes: npt.NDArray[np.float64]) -> float:
    """Mean Jensen-Shannon divergence in bits over pairs of clients: 0 alike, 1 nothing in common."""
    if len(mixes) > JS_CLIENTS:
        mixes = mixes[np.sort(np.random.RandomState(0).choice(len(mixes), JS_CLIENTS, replace=False))]
    if len(mixes) < 2:
        return 0.0
    own = _entropy(mixes)
    total = sum(
        float((_entropy((mixes[k] + mixes[k + 1 :]) / 2) - (own[k] + own[k + 1 :]) / 2).sum())
        for k in range(len(mixes) - 1)
    )
    pairs = len(mixes) * (len(mixes) - 1) / 2
    return min(1.0, max(0.0, total / pairs / float(np.log(2))))


def _gini(sizes: Ints) -> float:
    """0: all clients the same size; towards 1: one client has everything."""
    ranked = np.sort(sizes)
    rank = np.arange(1, len(ranked) + 1)
    return float(((2 * rank - len(ranked) - 1) * ranked).sum() / (len(ranked) * ranked.sum()))


def _sha256(*arrays: Ints) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(len(array).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(array, dtype="<i8").data)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Whole or not at all, in a folder made for it if need be."""
    with contextlib.suppress(OSError):  # the write itself says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
