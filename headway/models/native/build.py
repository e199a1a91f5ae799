"""Compiling C++ files and bodies for this machine; the results are cached in headway's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
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

FLAGS = ("-O3", "-std=c++17", "-march=native", "-ffp-contract=fast", "-pthread", "-shared", "-fPIC")
LEFT_OUT = {"AVX2": ("-mno-avx512f",), "DEFAULT": ("-mno-avx",)}  # by torch's instruction set, on x86


class NotBuilt(Exception):
    """A C++ file could not be compiled here; the message has the reason and the fix."""


def compiler() -> str | None:
    """The path of the C++ compiler, None if there is none."""
    names = (os.environ.get("CXX"), "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def flags() -> tuple[str, ...]:
    """The compiler's flags: for this processor, without what torch leaves out as well (ATEN_CPU_CAPABILITY=avx2)."""
    return FLAGS + (LEFT_OUT.get(capability(), ()) if is_x86() else ())


def has_wide_vectors() -> bool:
    """Whether the code may be faster than torch: not on x86 without AVX, where some layers are slower."""
    return not (is_x86() and capability() == "DEFAULT")


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def capability() -> str:
    """The instruction set that torch uses here: AVX512, AVX2, DEFAULT, or one of another kind of processor."""
    return torch.backends.cpu.get_cpu_capability()


def folder() -> Path:
    return cache_dir() / "compiled"


@cache
def compiled_body() -> Callable[[nn.Module, Tensor], Tensor]:
    """The function (body, x) -> body(x), compiled by torch.compile at its first call."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder()))
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # no pool of compiler processes, which would outlive a worker that is killed
    return torch.compile(lambda body, x: type(body).forward(body, x), dynamic=False)  # without its plans (graph.py)


@cache
def library(source: str) -> ctypes.CDLL:
    """The compiled library of a C++ file in this folder; ConfigError if it cannot be compiled."""
    try:
        return built(Path(__file__).with_name(source))
    except NotBuilt as error:
        raise ConfigError(f"native: {error}, or start a new run with {option('native', 'off')}") from None


def built(source: Path) -> ctypes.CDLL:
    """The compiled library of a C++ file; compiled at its first use on a machine."""
    build = compiler()
    if build is None:
        raise NotBuilt(f"{source.name} needs a C++ compiler and there is none; install g++")
    key = [build, *flags(), processor(), torch.__version__]
    text = source.read_bytes() + b"".join(h.read_bytes() for h in sorted(source.parent.glob("*.h")))
    name = f"{source.stem}-{hashlib.sha256(text + repr(key).encode()).hexdigest()[:16]}.so"
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
        call = [build, *flags(), "-o", str(made), str(source)]
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
