"""Devices: resolving a device's name, listing GPUs, copying tensors to one."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from headway.base.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The torch device of this name; ConfigError if headway cannot use it."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # no CUDA context: a process with one cannot fork
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name}: headway runs on cpu and cuda; use cpu, cuda or cuda:0")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device={name}: this machine has no CUDA device that torch can use; use cpu")
    return device


def all_gpus() -> tuple[torch.device, ...]:
    """The machine's GPUs if there are several; a single one is used by the run's own process, without workers."""
    count = torch.cuda.device_count()
    return tuple(torch.device("cuda", i) for i in range(count)) if count > 1 else ()


def uploaded(t: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; copied to a GPU from page-locked memory, on a stream of its own."""
    if device.type != "cuda":
        return t.to(device)
    copy_stream, compute_stream = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copy_stream):
        moved = t.pin_memory().to(device, non_blocking=True)
    compute_stream.wait_stream(copy_stream)
    moved.record_stream(compute_stream)
    return moved
