"""Values sent between processes: through shared memory, or as an array of bytes to another machine. No pickle."""

from __future__ import annotations

import json
import marshal
import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.base.serialise import flatten, unflatten
from headway.core.reports import Bundle, Part
from headway.core.state import Client, Report

ALIGN = 64
MOST_MAPPINGS = 20_000  # memory mappings of one engine


class SharedBuffer:
    """A block of memory shared with forked workers. Pages that are never written to use no memory."""

    def __init__(self, size: int, memory: mmap.mmap | None = None, start: int = 0):
        self.size = size
        self._memory = mmap.mmap(-1, size) if memory is None else memory  # anonymous: freed with the last process
        self._start = start
        self._whole: dict[torch.dtype, Tensor] = {}  # the whole buffer as a tensor of each dtype
        self._given = 0  # bytes at the beginning that `empty` gave away

    @classmethod
    def allocate(cls, count: int, size: int) -> list[SharedBuffer]:
        """`count` buffers in at most MOST_MAPPINGS mappings: Linux allows a process 65,530 of them by default.

        Not one mapping for all: the kernel refuses a mapping larger than the machine's memory, even if little of it is
        written to.
        """
        size, together = aligned(size), -(-count // MOST_MAPPINGS)
        buffers: list[SharedBuffer] = []
        while len(buffers) < count:
            memory = mmap.mmap(-1, together * size)
            buffers += [cls(size, memory, i * size) for i in range(min(together, count - len(buffers)))]
        return buffers

    def empty(self, count: int) -> Tensor:
        """A tensor of so many floats, in the buffer if they fit: the next `pack` need not copy it."""
        size = aligned(4 * count)
        if size > self.size:
            return torch.empty(count)
        self._given = size
        return self._view(torch.float32, count, 0)

    def pack(self, value: Any) -> bytes:
        """Write the value's tensors into the buffer and return the message to send; it holds what did not fit."""
        tensors: dict[str, Tensor] = {}
        skeleton = flatten(value, tensors)
        places: list[list[Any]] = []
        at, overflow, self._given = self._given, b"", 0
        for path, data in on_host(tensors).items():
            size = data.numel() * data.element_size()
            if (there := self._offset(data)) is not None:
                places.append(placed(path, data, there))
                continue
            fits = at + size <= self.size
            places.append(placed(path, data, at if fits else -1 - len(overflow)))
            if fits:
                if size:
                    self._view(data.dtype, data.numel(), at).copy_(data.view(-1))
                at += aligned(size)
            else:
                overflow += bytes(data.view(-1).view(torch.uint8).numpy())
        head = marshal.dumps((skeleton, places))  # marshal is enough: the reader is the same Python version
        return len(head).to_bytes(8, "big") + head + overflow

    def unpack(self, message: bytes, copy: bool = False, device: torch.device | None = None) -> Any:
        """The value that `pack` wrote, on a device. Its tensors are views of the buffer; with `copy`, copies."""
        length = int.from_bytes(message[:8], "big")
        skeleton, places = marshal.loads(message[8 : 8 + length])  # noqa: S302  written by `pack` in a related process
        overflow = bytearray(message[8 + length :])

        def read(dtype: torch.dtype, count: int, at: int) -> Tensor:
            if at >= 0:
                flat = self._view(dtype, count, at)
                flat = flat.clone() if copy else flat
            else:
                flat = torch.frombuffer(overflow, dtype=dtype, count=count, offset=-1 - at).clone()
            cuda = device is not None and device.type == "cuda"
            return flat.pin_memory().to(device, non_blocking=True) if cuda else flat

        return unflatten(skeleton, read_tensors(places, read, device))

    def _offset(self, data: Tensor) -> int | None:
        """Where the tensor stands in this buffer; None if it stands elsewhere."""
        whole = self._whole.get(data.dtype)
        if whole is None or data.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
            return None
        return data.data_ptr() - whole.data_ptr()

    def _view(self, dtype: torch.dtype, count: int, at: int) -> Tensor:
        whole = self._whole.get(dtype)
        if whole is None:  # all views share one storage, so that tree.mean can add the tensors as one vector
            whole = self._whole[dtype] = torch.frombuffer(
                self._memory, dtype=dtype, count=self.size // dtype.itemsize, offset=self._start
            )
        start = at // dtype.itemsize
        return whole[start : start + count]


def placed(path: str, data: Tensor, at: int) -> list[Any]:
    """How a message describes a tensor: its path, dtype, shape, and where its numbers begin."""
    return [path, str(data.dtype).removeprefix("torch."), list(data.shape), at]


def read_tensors(
    places: list[list[Any]], read: Callable[[torch.dtype, int, int], Tensor], device: torch.device | None
) -> dict[str, Tensor]:
    """The tensors that a message describes; `read(dtype, count, at)` returns the numbers of one, on this device."""
    tensors: dict[str, Tensor] = {}
    for path, name, shape, at in places:
        dtype, count = getattr(torch, name), math.prod(shape)
        tensors[path] = (read(dtype, count, at) if count else torch.empty(0, dtype=dtype, device=device)).view(shape)
    return tensors


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in host memory; those on a GPU are copied together, through page-locked memory that torch caches."""
    if not any(t.is_cuda for t in tensors.values()):
        return tensors
    host = {path: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for path, t in tensors.items()}
    for path, t in tensors.items():
        host[path].copy_(t, non_blocking=True)
    torch.cuda.synchronize()  # the copies must be complete before anyone reads them
    return host


def to_array(value: Any) -> NDArray[np.uint8]:
    """A value as one array of bytes: the length of its header, the header, then its tensors."""
    tensors: dict[str, Tensor] = {}
    skeleton = flatten(value, tensors)
    held: list[tuple[int, Tensor]] = []
    places: list[list[Any]] = []
    at = 0
    for path, tensor in tensors.items():
        data = tensor.detach().cpu().contiguous()
        places.append(placed(path, data, at))
        held.append((at, data))
        at += aligned(data.numel() * data.element_size())
    head = json.dumps({"skeleton": skeleton, "places": places}).encode()
    start = aligned(8 + len(head))
    array = np.zeros(start + at, dtype=np.uint8)
    array[:8] = np.frombuffer(len(head).to_bytes(8, "big"), dtype=np.uint8)
    array[8 : 8 + len(head)] = np.frombuffer(head, dtype=np.uint8)
    for place, data in held:
        if data.numel():
            raw = data.view(-1).view(torch.uint8).numpy()
            array[start + place : start + place + len(raw)] = raw
    return array


def from_array(array: NDArray[np.uint8], device: torch.device | None = None) -> Any:
    """The value that `to_array` packed. Its tensors are copies, as other processes may read the array's memory too.

    torch allocates them, so that they are aligned in memory as in a run in one process.
    """
    length = int.from_bytes(array[:8].tobytes(), "big")
    head = json.loads(array[8 : 8 + length].tobytes())
    start = aligned(8 + length)

    def read(dtype: torch.dtype, count: int, at: int) -> Tensor:
        tensor = torch.empty(count, dtype=dtype)
        raw = tensor.view(torch.uint8).numpy()
        raw[:] = array[start + at : start + at + len(raw)]
        return tensor if device is None else tensor.to(device)

    return unflatten(head["skeleton"], read_tensors(head["places"], read, device))


def packable(parts: Sequence[Part], states: Sequence[Client]) -> dict[str, Any]:
    """The answer of a unit as a value: reports, bundles and states apart, as their classes are not sent."""
    reports, bundles = ([p for p in parts if isinstance(p, kind)] for kind in (Report, Bundle))
    return {"reports": reports, "bundles": bundles, "states": list(states)}


def unpacked(answer: dict[str, Any]) -> tuple[list[Part], list[Client]]:
    """What `packable` made a value of."""
    parts: list[Part] = [Report(**fields) for fields in answer["reports"]]
    parts += [Bundle.received(fields) for fields in answer["bundles"]]
    return parts, [Client(**fields) for fields in answer["states"]]


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
