"""Read the needed files of a folder, zip or tar straight into memory; nothing is ever extracted to disk."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from headway.base.errors import DataError

MAX_MEMBERS = 2_000_000
MAX_BYTES = 16 << 30
Want = Callable[[str], bool]


def members(path: Path, want: Want) -> dict[str, bytes]:
    """The wanted files of a folder or archive: name -> bytes."""
    try:
        if path.is_dir():
            return collect(path, folder_files(path, want))
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return collect(path, zip_files(path, archive, want))
        with tarfile.open(path, "r:*") as tar:
            return collect(path, tar_files(path, tar, want))
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        gzip.BadGzipFile,
    ) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}): fetch it again") from error
    except (RuntimeError, NotImplementedError) as error:  # zipfile: encrypted, or an unknown compression
        raise DataError(f"{path} cannot be read ({error}): fetch the official archive") from error


def tar_stream(where: Path, raw: IO[bytes], want: Want) -> dict[str, bytes]:
    """The wanted files of a plain tar that comes through a pipe."""
    try:
        with tarfile.open(fileobj=raw, mode="r|") as tar:
            return collect(where, tar_files(where, tar, want))
    except (tarfile.TarError, EOFError) as error:
        raise DataError(f"{where} is damaged ({type(error).__name__}): fetch it again") from error


def collect(path: Path, found: Iterator[tuple[str, bytes]]) -> dict[str, bytes]:
    kept: dict[str, bytes] = {}
    for name, raw in found:
        if name in kept:
            raise DataError(f"{path} holds {name} twice: fetch the official archive")
        kept[name] = raw
    return kept


def folder_files(path: Path, want: Want) -> Iterator[tuple[str, bytes]]:
    for name in walk(path):
        if want(name):
            yield name, (path / name).read_bytes()


def walk(path: Path) -> list[str]:
    """Every file below a folder, by its name from there, sorted."""
    names: list[str] = []
    for folder, _, files in os.walk(path):
        base = Path(folder).relative_to(path).as_posix()
        names += [name if base == "." else f"{base}/{name}" for name in files]
    return sorted(names)


def zip_files(path: Path, archive: zipfile.ZipFile, want: Want) -> Iterator[tuple[str, bytes]]:
    total = 0
    for count, info in enumerate(archive.infolist()):
        total += info.file_size
        bounded(path, count, total)
        if want(info.filename):
            mode = info.external_attr >> 16
            safe(path, info.filename, regular=not info.is_dir() and stat.S_IFMT(mode) in (0, stat.S_IFREG))
            yield info.filename, archive.read(info)


def tar_files(path: Path, tar: tarfile.TarFile, want: Want) -> Iterator[tuple[str, bytes]]:
    total = count = 0
    while (info := tar.next()) is not None:
        count, total = count + 1, total + info.size
        bounded(path, count, total)
        tar.members = []  # type: ignore[attr-defined]  # tarfile would keep every header it has seen
        name = info.name.removeprefix("./")
        if not want(name):
            continue
        safe(path, name, regular=info.isreg())
        file = tar.extractfile(info)
        raw = file.read() if file else b""
        if len(raw) != info.size:
            raise EOFError
        yield name, raw


def bounded(path: Path, count: int, total: int) -> None:
    if count > MAX_MEMBERS or total > MAX_BYTES:
        raise DataError(
            f"{path} unpacks to more than {MAX_BYTES >> 30} GiB or {MAX_MEMBERS} files: fetch the official archive"
        )


def safe(path: Path, name: str, regular: bool) -> None:
    pure = PurePosixPath(name)
    if not regular or pure.is_absolute() or ".." in pure.parts:
        raise DataError(f"{path} holds {name}, which is no plain file inside it: fetch the official archive")


def gunzip(where: str, raw: bytes, limit: int = 1 << 30) -> bytes:
    """The content of a .gz (or the bytes themselves), never more than `limit`."""
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} is damaged ({type(error).__name__}): fetch it again") from error
    if len(content) > limit:
        raise DataError(f"{where} unpacks to more than {limit} bytes: it is not the official file")
    return content


def fingerprint(path: Path, want: Want) -> str:
    """Which archive or folder this is, without reading it: names, sizes and times of the wanted files."""
    digest = hashlib.sha256()
    for name in filter(want, walk(path)) if path.is_dir() else [""]:
        info = (path / name).stat()
        digest.update(f"{name}\0{info.st_size}\0{info.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
