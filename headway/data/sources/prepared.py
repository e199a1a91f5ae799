"""Decoded arrays kept in one safetensors file, with the hash they must have when read again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from headway.base.errors import DataError
from headway.data.arrays import Dataset

log = logging.getLogger(__name__)


def read(path: Path, content: str | None = None) -> Dataset | None:
    """The arrays, or None when the file is missing, damaged, altered or not those of hash `content`."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            stored = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        about = json.loads(stored["about"])
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
        data = Dataset(**(fields | tensors))
        whole = stored["sha256"] == digest(stored["about"], data)
    except (SafetensorError, DataError, OSError, KeyError, TypeError, ValueError) as error:
        log.warning("%s is damaged (%s) and is made again", path, type(error).__name__)
        return None
    if not whole or (content is not None and data.hash() != content):
        log.warning("%s was altered and is made again", path)
        return None
    return data


def write(path: Path, data: Dataset) -> None:
    """Keep the arrays; the file gets its name only when it is whole."""
    from safetensors.torch import save_file

    fields = ("name", "classes", "class_names", "mean", "std", "scale", "note")
    about = json.dumps({field: getattr(data, field) for field in fields})
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        tensors = {name: tensor.contiguous() for name, tensor in data.tensors().items()}
        save_file(tensors, partial, metadata={"about": about, "sha256": digest(about, data)})
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def digest(about: str, data: Dataset) -> str:
    return hashlib.sha256(f"{about}\n{data.hash()}".encode()).hexdigest()
