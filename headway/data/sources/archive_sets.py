"""CIFAR-100, Tiny-ImageNet, CINIC-10, FEMNIST: from the official archive or its extracted folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.base.errors import DataError
from headway.base.tree import stream
from headway.data.arrays import Dataset
from headway.data.checks import split_each
from headway.data.sources import catalogue, formats
from headway.data.sources import download as fetch
from headway.data.sources.archives import Want, fingerprint, members
from headway.data.sources.registries import Places, assemble

Array = NDArray[Any]
Files = dict[str, tuple[str, bytes]]  # name inside -> (what to call it in an error, its bytes)


@dataclass(frozen=True)
class ArchiveSet:
    """A set read from one official archive or from its extracted folder."""

    make: Callable[[Path, Files], Dataset]
    archive: str | None
    folders: tuple[str, ...]  # what the extracted folder may be called
    markers: tuple[str, ...]  # one of them must be inside it
    wanted: str  # pattern of the file names to read
    advice: str

    def find(self, places: Places) -> Path | None:
        for root in (*places.named, places.own):
            if self.archive and (root / self.archive).is_file():
                return root / self.archive
            for folder in (root / f for f in (*self.folders, ".")):
                if any(next(folder.glob(marker), None) is not None for marker in self.markers):
                    return folder
        return None

    def fetch(self, places: Places) -> Path:
        if self.archive is None:
            raise places.refuse(self.advice, [])
        try:
            address, known = catalogue.ARCHIVES[self.archive]
            return fetch.from_url(address, known, places.own / self.archive, places.cache)
        except fetch.Unreachable as failed:
            raise places.refuse(self.advice, [str(failed)]) from failed

    def key(self, path: Path) -> str:
        return fingerprint(path, self.want(path))

    def load(self, path: Path) -> Dataset:
        pattern = re.compile(self.wanted)
        files: Files = {}
        for name, raw in members(path, self.want(path)).items():
            inner = name if pattern.fullmatch(name) else name.split("/", 1)[1]
            files[inner] = (f"{path}: {name}", raw)
        return self.make(path, files)

    def want(self, path: Path) -> Want:
        wrapper = "" if path.is_dir() else r"(?:[^/]+/)?"  # archives may hold one folder around everything
        pattern = re.compile(f"{wrapper}(?:{self.wanted})")
        return lambda name: pattern.fullmatch(name) is not None


def cifar100(path: Path, files: Files) -> Dataset:
    """The binary version; the fine label is the second byte."""
    for file in ("train.bin", "test.bin"):
        if file not in files:
            raise DataError(f"{path} lacks {file}: fetch the official cifar-100-binary.tar.gz")
    train, test = (formats.cifar_records(*files[f], label_bytes=2) for f in ("train.bin", "test.bin"))
    names = files.get("fine_label_names.txt", ("", b""))[1].decode("utf-8", "replace").split()
    return assemble("cifar100", train, test, names or [str(c) for c in range(100)])


def tiny_imagenet(path: Path, files: Files) -> Dataset:
    """train/<wnid>/images/*, and the validation part (its labels are published) as test set."""
    table = files.pop("val/val_annotations.txt", ("", b""))[1].decode("utf-8", "replace")
    labels = {row[0]: row[1] for row in (line.split("\t") for line in table.splitlines()) if len(row) > 1}
    train = {name: name.split("/")[1] for name in files if name.startswith("train/")}
    test = {name: labels.get(name.split("/")[-1], "") for name in files if name.startswith("val/")}
    if lost := sorted(name for name, label in test.items() if not label):
        raise DataError(f"{path}: val/val_annotations.txt does not name {lost[0]}: fetch tiny-imagenet-200.zip again")
    return image_set("tiny-imagenet", path, files, train, test, "validation part as test set")


def cinic10(path: Path, files: Files) -> Dataset:
    """{train,test}/<class>/*.png; the validation part is left out."""
    train, test = (
        {name: name.split("/")[1] for name in files if name.startswith(part)} for part in ("train/", "test/")
    )
    return image_set("cinic10", path, files, train, test, "validation part left out")


def image_set(name: str, path: Path, files: Files, train: dict[str, str], test: dict[str, str], note: str) -> Dataset:
    """Images by file name -> class name, in the order of their names."""
    names = sorted(set(train.values()))
    if not train or not test:
        raise DataError(f"{path} has {len(train)} training and {len(test)} test images: fetch {name} again")
    if odd := set(test.values()) - set(names):
        raise DataError(f"{path} has class {min(odd)} only in its test part: fetch {name} again")
    order = sorted(train), sorted(test)
    number = {c: i for i, c in enumerate(names)}
    y = np.asarray([number[train[k]] for k in order[0]], dtype=np.int64)
    y_test = np.asarray([number[test[k]] for k in order[1]], dtype=np.int64)
    x, _ = formats.decode([files[k] for k in order[0] + order[1]], colour=True)
    return assemble(name, (x[: len(y)], y), (x[len(y) :], y_test), names, note=note)


def femnist(path: Path, files: Files) -> Dataset:
    """LEAF's json: all_data/ is split 90/10 for each writer; train/ and test/ are taken as they are."""
    whole, first, second = (
        [files[name] for name in sorted(files) if name.startswith(part)] for part in ("all_data/", "train/", "test/")
    )
    names = catalogue.FEMNIST_NAMES
    if whole:
        x, y, writers = formats.leaf(whole)
        train, test = split_writers(writers)
        who = [writers[i] for i in train], [writers[i] for i in test]
        note = "10 % of each writer's samples held out as test set"
        return assemble("femnist", (x[train], y[train]), (x[test], y[test]), names, who, note=note)
    if not first or not second:
        raise DataError(f"{path} holds only one of train/*.json and test/*.json: keep both, or all_data/*.json")
    x, y, writers = formats.leaf(first)
    x_test, y_test, writers_test = formats.leaf(second)
    return assemble("femnist", (x, y), (x_test, y_test), names, (writers, writers_test), note="LEAF's own split")


def split_writers(writers: Sequence[str]) -> tuple[Array, Array]:
    """90/10 per writer; the draw depends on the writer's name only; a single sample stays in training."""
    held = np.zeros(len(writers), dtype=bool)
    names, codes = np.unique(np.asarray(writers), return_inverse=True)
    order = np.argsort(codes, kind="stable")
    for name, theirs in zip(names, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
        _, test = split_each(np.zeros(len(theirs), np.int64), 0.1, stream("femnist", str(name)))
        held[theirs[test]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


SETS = {
    "cifar100": ArchiveSet(
        cifar100,
        "cifar-100-binary.tar.gz",
        ("cifar-100-binary",),
        ("train.bin",),
        r"(?:train|test)\.bin|fine_label_names\.txt",
        "cifar-100-binary.tar.gz (or the extracted folder cifar-100-binary)",
    ),
    "tiny-imagenet": ArchiveSet(
        tiny_imagenet,
        "tiny-imagenet-200.zip",
        ("tiny-imagenet-200",),
        ("val/val_annotations.txt",),
        r"train/[^/]+/images/[^/.][^/]*|val/images/[^/.][^/]*|val/val_annotations\.txt",
        "tiny-imagenet-200.zip (or the extracted folder tiny-imagenet-200)",
    ),
    "cinic10": ArchiveSet(
        cinic10,
        "CINIC-10.tar.gz",
        ("CINIC-10", "cinic-10", "cinic10"),
        ("train/airplane",),
        r"(?:train|test)/[^/]+/[^/.][^/]*\.png",
        "CINIC-10.tar.gz (or the extracted folder CINIC-10)",
    ),
    "femnist": ArchiveSet(
        femnist,
        None,
        ("femnist",),
        ("all_data/*.json", "train/*.json"),
        r"(?:all_data|train|test)/[^/]+\.json",
        "LEAF's folder all_data with its json files (in its data/femnist: ./preprocess.sh -s niid --sf 1.0)",
    ),
}
