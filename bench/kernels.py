"""A training step (forward and backward) with native code against torch's, and the ratio of their times.

    .venv/bin/python bench/kernels.py            # the vectors of this processor
    .venv/bin/python bench/kernels.py --avx2     # no wider than AVX2: headway's code and torch's libraries
    .venv/bin/python bench/kernels.py --layers   # also single layers

Turns alternate between the two, on one thread; ratios are medians over turns.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time

import torch
from torch import nn

from headway.models import body, rewrite

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
TURN_SECONDS = 0.1
Case = tuple[nn.Module, torch.Tensor]


def image(batch: int, channels: int, side: int) -> torch.Tensor:
    return torch.randn(batch, channels, side, side).contiguous(memory_format=torch.channels_last)


def networks() -> dict[str, Case]:
    draw = torch.Generator().manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3072, 200), nn.ReLU(), nn.Linear(200, 10))
    return {
        "mcmahan_cnn, batch 64": (body("mcmahan_cnn", (3, 32, 32), seed_stream=draw), image(64, 3, 32)),
        "resnet20, batch 64": (body("resnet20", (3, 32, 32), seed_stream=draw), image(64, 3, 32)),
        "resnet18, batch 64": (body("resnet18", (3, 32, 32), seed_stream=draw), image(64, 3, 32)),
        "vgg11, batch 32": (body("vgg11", (3, 32, 32), seed_stream=draw), image(32, 3, 32)),
        "MLP 3072-200-10, batch 10": (mlp, torch.randn(10, 3072)),
    }


def layers() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for batch, c, out, side, k, pad in (
        (64, 1, 32, 28, 5, 0), (64, 3, 32, 32, 5, 0), (64, 32, 64, 14, 5, 0), (64, 6, 16, 14, 5, 0),
        (32, 3, 64, 32, 3, 1), (32, 64, 128, 16, 3, 1), (32, 256, 256, 8, 3, 1), (32, 512, 512, 2, 3, 1),
    ):  # fmt: skip
        net = nn.Sequential(nn.Conv2d(c, out, k, padding=pad), nn.ReLU(), nn.MaxPool2d(2))
        found[f"conv {c}-{out} {k}x{k}, pool, {side}x{side}, batch {batch}"] = (
            net,
            image(batch, c, side).requires_grad_(c > 3),
        )
    for batch in (10, 64):
        for c, side in ((16, 32), (32, 16), (64, 8), (64, 32), (128, 16), (256, 8), (512, 4), (512, 2)):
            net, x = nn.Sequential(nn.Conv2d(c, c, 3, padding=1)), image(batch, c, side).requires_grad_()
            found[f"conv {c}-{c} 3x3, {side}x{side}, batch {batch}"] = (net, x)
            net = nn.Sequential(nn.BatchNorm2d(c), nn.ReLU())
            found[f"norm, ReLU {c}, {side}x{side}, batch {batch}"] = (net, image(batch, c, side).requires_grad_())
    for batch in (2, 4, 8, 12, 16, 32, 64):
        for size in ((3072, 200), (1600, 512), (16384, 16), (512, 512)):
            net, x = nn.Sequential(nn.Linear(*size)), torch.randn(batch, size[0])
            found[f"linear {size[0]}-{size[1]}, batch {batch}"] = (net, x)
    return found


def step(net: nn.Module, x: torch.Tensor) -> None:
    net.zero_grad()
    net(x).square().mean().backward()


def times(net: nn.Module, x: torch.Tensor, turns: int) -> tuple[float, float, float]:
    """Milliseconds per step, native and torch; the median of their ratios."""
    net.to(memory_format=torch.channels_last)
    ours = copy.deepcopy(net)
    rewrite.install(ours, tuple(x.shape[1:]), native=True, folded=False)
    found: list[list[float]] = [[], []]
    count = 1
    for turn in range(turns + 2):
        for each, seconds in zip((ours, net), found, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                step(each, x)
            seconds.append((time.perf_counter() - start) / count)
        count = max(1, round(TURN_SECONDS / found[1][-1])) if turn == 1 else count  # turn 0 warms up
    a, b = (each[2:] for each in found)
    return (
        1e3 * statistics.median(a),
        1e3 * statistics.median(b),
        statistics.median(s / t for s, t in zip(a, b, strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--avx2", action="store_true", help="no vectors wider than those of AVX2")
    parser.add_argument("--layers", action="store_true", help="also single layers")
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    if args.avx2 and not AVX2.items() <= os.environ.items():  # torch reads them when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | AVX2)  # noqa: S606
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{torch.backends.cpu.get_cpu_capability():<40}{'native ms':>12}{'torch ms':>12}{'ratio':>8}")
    for name, (net, x) in (networks() | (layers() if args.layers else {})).items():
        if rewrite.for_training(net) is None:
            print(f"{name:<40}   not used")
            continue
        a, b, ratio = times(net, x, args.turns)
        print(f"{name:<40}{a:>12.2f}{b:>12.2f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
