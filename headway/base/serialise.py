"""Values <-> one safetensors file: tensors as they are, all other values as JSON in the file's header. No pickle."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from headway.base.errors import CheckpointError, DiskError
from headway.base.lazy import Tensor, torch
from headway.base.tree import Tree

T = TypeVar("T")
NAMED: dict[str, type] = {}  # dataclasses that are read back as their own class


def named(cls: type[T]) -> type[T]:
    """Class decorator for dataclasses in notes and surveys: they are read back as their own class, not as dicts."""
    NAMED[cls.__name__] = cls
    return cls


def flatten(value: Any, tensors: dict[str, Tensor], path: str = "v") -> Any:
    """The JSON skeleton of a value; its tensors are put into `tensors`, under the paths that the skeleton contains."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().contiguous()
        return {"tensor": path}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        flat = {k: flatten(v, tensors, f"{path}/{k}") for k, v in parts.items()}
        name = type(value).__name__
        return {"named": [name, flat]} if NAMED.get(name) is type(value) else {"fields": flat}
    if isinstance(value, dict):
        name = "tree" if isinstance(value, Tree) else "dict"
        items = [[k, flatten(v, tensors, f"{path}/{k}")] for k, v in value.items()]
        return {name: items}
    if isinstance(value, list | tuple):
        return {"list": [flatten(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]}
    if value is None:
        return {"is": None}
    for kind in (bool, int, float, str):  # subclasses, such as numpy's, are converted to the plain type
        if isinstance(value, kind):
            return {"is": kind(value)}
    raise TypeError(
        f"{path} holds a {type(value).__name__}; notes are tensors, trees, numbers, strings and dicts of them"
    )


def unflatten(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    """The value of a skeleton; dataclasses become dicts of their fields, `named` ones become their own class."""
    ((kind, body),) = skeleton.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "named":
        return NAMED[body[0]](**{k: unflatten(v, tensors) for k, v in body[1].items()})
    if kind == "fields":
        return {k: unflatten(v, tensors) for k, v in body.items()}
    if kind == "tree":
        return Tree({k: unflatten(v, tensors) for k, v in body})
    if kind == "dict":
        return {k: unflatten(v, tensors) for k, v in body}
    if kind == "list":
        return [unflatten(v, tensors) for v in body]
    return body


def to_bytes(value: Any) -> bytes:
    """The bytes of a safetensors file; the header has only one entry, as several are written in random order."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    skeleton = flatten(value, tensors)
    blob: bytes = save({k: v.cpu().clone() for k, v in tensors.items()}, {"skeleton": json.dumps(skeleton)})
    return blob


def write_values(path: Path, value: Any) -> None:
    """Write a file, not atomically; for temporary files only."""
    path.write_bytes(to_bytes(value))


def read_raw(path: Path, device: torch.device | None = None) -> Any:
    """Read a value back; dataclasses become dicts of their fields, `named` ones become their own class."""
    try:
        with safe_open(path, framework="pt") as f:
            meta = f.metadata() or {}
            tensors = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118  not a dict
        if device is not None:
            tensors = {key: t.to(device) for key, t in tensors.items()}
        return unflatten(json.loads(meta["skeleton"]), tensors)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
        why = type(error).__name__
        raise CheckpointError(f"{path.name} cannot be read ({why}); it is damaged or not a headway file") from error


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a file atomically: a temporary file in the same folder is flushed to disk and renamed."""
    data = data.encode() if isinstance(data, str) else data
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temp, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temp, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temp.unlink(missing_ok=True)
        raise DiskError(
            f"{path.name} cannot be written to {path.parent} ({error.strerror}); "
            f"free space or make the folder writable: an earlier file of this name is unchanged"
        ) from error
