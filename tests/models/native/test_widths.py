"""The kernels at each width of vectors: torch's numbers in double precision, for sizes that no block divides."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.models.native import build, has_wide_vectors, pooled, sources, thin

OTHER = "ATEN_CPU_CAPABILITY"
HERE = torch.backends.cpu.get_cpu_capability()
pytestmark = pytest.mark.skipif(build.compiler() is None, reason="the kernels are built by a C++ compiler")
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are widths of x86")


def close(a: torch.Tensor, exact: torch.Tensor) -> bool:
    """Equal up to rounding in float32, relative to the largest value."""
    return bool((a - exact).abs().max() <= 2e-5 * exact.abs().max())


@pytest.mark.parametrize("batch", range(1, 14))
@pytest.mark.parametrize(("size_in", "size_out"), [(1, 1), (7, 13), (33, 6), (165, 11), (80, 5), (331, 29)])
def test_a_linear_layer(batch, size_in, size_out):
    draw = torch.Generator().manual_seed(batch)
    x, w = torch.randn(batch, size_in, generator=draw), torch.randn(size_out, size_in, generator=draw)
    b, gz = torch.randn(size_out, generator=draw), torch.randn(batch, size_out, generator=draw)
    ours, exact = ([t.clone().to(kind).requires_grad_() for t in (x, w, b)] for kind in (torch.float32, torch.float64))
    z = thin.Thin.apply(*ours)
    assert close(z, F.linear(*exact))
    z.backward(gz)
    F.linear(*exact).backward(gz.double())
    assert all(close(a.grad, e.grad) for a, e in zip(ours, exact, strict=True))


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "kernel", "size"),
    [
        (1, 1, 1, (1, 1), (2, 2)), (2, 1, 3, (5, 5), (9, 8)), (13, 3, 5, (5, 5), (8, 11)), (3, 6, 4, (5, 5), (7, 9)),
        (2, 8, 2, (2, 2), (6, 7)), (5, 17, 9, (3, 3), (5, 6)), (2, 33, 3, (7, 2), (9, 7)), (2, 67, 7, (3, 3), (5, 5)),
        (2, 205, 3, (1, 4), (4, 7)), (150, 2, 64, (3, 3), (6, 6)),
    ],
)  # fmt: skip
def test_a_convolution_with_its_pool(batch, channels, filters, kernel, size):
    torch.manual_seed(0)
    conv, x, answers = nn.Conv2d(channels, filters, kernel), torch.randn(batch, channels, *size), []
    for kind, f in ((torch.float32, pooled.ConvThenPool.apply), (torch.float64, pooled.torch_conv_then_pool)):
        given = [t.detach().clone().to(kind).requires_grad_() for t in (x, conv.weight, conv.bias)]
        y = f(*given, (0, 0))
        answers.append([y, *torch.autograd.grad(y.square().sum(), given)])
    assert all(close(a, e) for a, e in zip(*answers, strict=True))


@x86
@pytest.mark.skipif(OTHER in os.environ, reason="it is the other width that is tested")
@pytest.mark.parametrize("name", ["avx2", "default"])
def test_narrower_vectors_than_those_of_this_processor(name):
    if name == "avx2" and HERE not in ("AVX512", "AVX2"):
        pytest.skip("this processor has no AVX2")
    folder = Path(__file__).parent
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "test_widths.py")]
    tests = [*call, *(str(folder / f"test_{name}.py") for name in ("thin", "pooled", "winograd", "norm", "mlp"))]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(tests, env=environment | {OTHER: name}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@x86
@pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump reads the machine code")
@pytest.mark.parametrize("source", ["thin.cpp", "pooled.cpp", "winograd.cpp", "norm.cpp", "mlp.cpp"])
def test_multiply_adds_are_fused_and_as_wide_as_torchs(source):
    code = subprocess.check_output(["objdump", "-d", build.library(source)._name], text=True)
    fused = {line[-1] for line in re.findall(r"vfmadd\S+p[sd]\s.*%([xyz])mm", code)}
    widest = {"AVX512": "z", "AVX2": "y", "DEFAULT": ""}[HERE]
    assert max(fused, default="") == widest


@x86
def test_the_flags_are_a_part_of_what_measured_times_are_kept_under(monkeypatch):
    monkeypatch.setattr(build, "capability", lambda: "AVX512")
    wide, key = build.flags(), sources()
    monkeypatch.setattr(build, "capability", lambda: "AVX2")
    assert build.flags() == (*wide, "-mno-avx512f")
    assert sources() != key


@x86
@pytest.mark.parametrize(("name", "wide"), [("AVX512", True), ("AVX2", True), ("DEFAULT", False)])
def test_without_avx_torch_is_used(monkeypatch, name, wide):
    monkeypatch.setattr(build, "capability", lambda: name)
    assert has_wide_vectors() is wide
