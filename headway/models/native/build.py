"""Compiling C++ files and bodies for this machine; the results are cached in headway's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from headway.base.cache import cache_dir
from headway.base.errors import ConfigError
from headway.base.wording import option

FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")


class NotBuilt(Exception):
    """A C++ file could not be compiled here; the message has the reason and the fix."""


def compiler() -> str | None:
    """The path of the C++ compiler, None if there is none."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def folder() -> Path:
    return cache_dir() / "compiled"


@cache
def compiled_body() -> Callable[[nn.Module, Tensor], Tensor]:
    """The function (body, x) -> body(x), compiled by torch.compile at its first call."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder()))
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # no pool of compiler processes, which would outlive a worker that is killed
    return torch.compile(lambda body, x: body(x), dynamic=False)


@cache
def library(source: str) -> ctypes.CDLL:
    """The compiled library of a C++ file in this folder; ConfigError if it cannot be compiled."""
    try:
        return built(Path(__file__).with_name(source))
    except NotBuilt as error:
        raise ConfigError(f"layout: {error}, or leave out {option('tune', True)}") from None


def built(source: Path) -> ctypes.CDLL:
    """The compiled library of a C++ file; compiled at its first use on a machine."""
    build = compiler()
    if build is None:
        raise NotBuilt(f"{source.name} needs a C++ compiler and there is none; install g++")
    key = [build, *FLAGS, processor(), torch.__version__]
    name = f"{source.stem}-{hashlib.sha256(source.read_bytes() + repr(key).encode()).hexdigest()[:16]}.so"
    place = folder() / name
    try:
        if not place.exists():
            _make(build, source, place)
        return ctypes.CDLL(str(place))
    except OSError as error:
        raise NotBuilt(
            f"{source.name} could not be built in {place.parent} ({error.strerror or error}); set HEADWAY_CACHE to "
            "a folder that may be written and run from"
        ) from None


def _make(build: str, source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as work:  # several workers may compile it at the same time
        made = Path(work) / place.name
        call = [build, *FLAGS, "-o", str(made), str(source)]
        answer = subprocess.run(call, capture_output=True, text=True, check=False)  # noqa: S603
        if answer.returncode:
            why = (answer.stderr.strip().splitlines() or ["no reason given"])[0]
            raise NotBuilt(f"{source.name} could not be built ({why}); name another compiler in CXX")
        os.replace(made, place)


def processor() -> str:
    """The processor's features; part of the library's name, as several machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
