"""The user's own data: .npz arrays, folders of images, CSV and Parquet tables."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.base.errors import DataError, nearest
from headway.data.arrays import Dataset, build
from headway.data.sources.archives import MAX_BYTES
from headway.data.sources.formats import decode
from headway.data.tables import table

Array = NDArray[Any]
MAGIC, SAVE = b"\x93NUMPY", "np.savez(path, x=..., y=...)"
KEYS = ("x", "y", "x_test", "y_test", "group", "group_test")
SUFFIXES = (".npz", ".csv", ".parquet")
TABLES = (".csv", ".parquet")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff")


def is_path(text: str) -> bool:
    """Whether a text means the user's own files rather than a data set's name."""
    if any(separator and separator in text for separator in ("/", os.sep, os.altsep)):
        return True
    path, _ = split_column(text)
    try:
        return text.lower().endswith(SUFFIXES) or path.exists()
    except OSError:  # a text too long for a file name
        return False


def split_column(text: str) -> tuple[Path, str | None]:
    """`table.csv:column` -> (table.csv, column)."""
    path, colon, column = text.rpartition(":")
    if colon and path.lower().endswith(TABLES):
        return Path(path).expanduser(), column
    return Path(text).expanduser(), None


def load_path(text: str) -> Dataset:
    """A data set from a path; see the three formats below and in tables.py."""
    path, column = split_column(text)
    try:
        if not path.exists():
            raise DataError(f"data '{path}' does not exist: check the path")
        return read(path, column)
    except OSError as error:
        raise DataError(f"data '{path}' cannot be read ({error.strerror}); correct its rights or its path") from error


def read(path: Path, column: str | None) -> Dataset:
    if path.is_dir():
        return image_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return npz(path)
    if suffix in TABLES:
        return table(path, column)
    raise DataError(f"data '{path}' ends in '{suffix}': give .npz, .csv, .parquet or a folder of images")


def npz(path: Path) -> Dataset:
    """Arrays x, y and optionally x_test, y_test, group, group_test."""
    unreadable = (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        OSError,
        ValueError,
        KeyError,
        MemoryError,
        SyntaxError,
    )
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > MAX_BYTES:
            raise DataError(f"{path} unpacks to {size >> 30} GiB, more than {MAX_BYTES >> 30}: give a smaller file")
        with np.load(path, allow_pickle=False) as file:
            if lost := [key for key in ("x", "y") if key not in file.files]:
                has = f"only {' and '.join(sorted(file.files)[:9])}" if file.files else "it is empty"
                raise DataError(f"{path} has no array '{lost[0]}', {has}: save it again with {SAVE}")
            if odd := [key for key in file.files if key not in KEYS]:
                raise DataError(f"{path} has an array '{odd[0]}': {nearest(odd[0], KEYS)}")
            arrays: dict[str, Any] = {key: file[key] for key in file.files}
    except PermissionError:
        raise
    except unreadable as error:
        with path.open("rb") as raw:
            if raw.read(len(MAGIC)) == MAGIC:
                raise DataError(
                    f"{path} holds one .npy array under the name of an .npz: save x and y together with {SAVE}"
                ) from error
        objects = "Object arrays" in str(error)
        why = "it holds Python objects, save plain arrays" if objects else "truncated?"
        raise DataError(f"{path} is not a readable .npz ({why}): write it again with np.savez") from error
    return build(path.name, **arrays)


def image_folder(path: Path) -> Dataset:
    """root/<class>/* or root/train/<class>/* with root/test (or val, valid)."""
    name, train = path.resolve().name, path / "train"
    tests = [path / part for part in ("test", "val", "valid") if (path / part).is_dir()]
    if not train.is_dir() or not tests:
        files, y, names = class_folders(train if train.is_dir() else path)
        x, notes = decode(files)
        return build(name, x, y, class_names=names, notes=notes)
    files, y, names = class_folders(train)
    files_test, y_test, _ = class_folders(tests[0], names)
    x, notes = decode(files + files_test)
    notes = [f"folder {left.name} left out" for left in tests[1:]] + notes
    return build(name, x[: len(y)], y, x[len(y) :], y_test, class_names=names, notes=notes)


def class_folders(
    root: Path, known: list[str] | None = None
) -> tuple[list[tuple[str, Path | bytes]], Array, list[str]]:
    """The image files of each class folder, their labels, and the class names."""
    found = sorted(folder.name for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    names = known or found
    if odd := [name for name in found if name not in names]:
        raise DataError(f"{root / odd[0]} is a class without training images: add some or remove it from the test")
    if not found:
        raise DataError(f"{root} holds no class folders: put the images into {root}/<class>/")
    files: list[tuple[str, Path | bytes]] = []
    labels: list[int] = []
    for name in found:
        images = sorted(
            file
            for file in (root / name).iterdir()
            if file.suffix.lower() in IMAGES and not file.name.startswith(".") and file.is_file()
        )
        if not images:
            raise DataError(
                f"data={root}: an image folder has one subfolder for each class, and '{name}' holds no images "
                f"({', '.join(IMAGES[:3])}, ...); add some, remove it, or give another folder"
            )
        files += [(str(file), file) for file in images]
        labels += [names.index(name)] * len(images)
    return files, np.asarray(labels, dtype=np.int64), names
