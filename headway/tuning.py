"""Which layout of images is faster for a model on this machine: a short timing, remembered.

Layouts agree up to rounding, not bit for bit, so the choice is written into config.json and a resumed run keeps it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from headway.data.fetch import cache_dir
from headway.models.net import Net
from headway.values import write_atomic

if TYPE_CHECKING:
    from headway.task import Task

LAYOUTS = ("channels_first", "channels_last")
STEPS, TURNS = 3, 5
WORTH = 0.95  # a layout must be this much faster: a coin's toss should not change anybody's bits


def layout_for(task: Task, cache: Path | None = None) -> str:
    """The faster layout for this task's body and batch size; measured once a machine."""
    if not any(isinstance(m, nn.Conv2d) for m in task.net_of({}).body.modules()):
        return LAYOUTS[0]  # nothing here looks at neighbouring pixels
    place = cache_dir(cache) / "tuning" / f"{_key(task)}.json"
    try:
        found = json.loads(place.read_text())
        if found["layout"] in LAYOUTS:
            return str(found["layout"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet, or not readable: measure
    seconds = measured(task)
    chosen = LAYOUTS[1] if seconds[LAYOUTS[1]] < WORTH * seconds[LAYOUTS[0]] else LAYOUTS[0]
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(place, json.dumps({"layout": chosen, "seconds": seconds, **_about(task)}, indent=1) + "\n")
    return chosen


def measured(task: Task) -> dict[str, float]:
    """Seconds a step in each layout: medians of turns that alternate, so that a busy moment hits both."""
    nets = {layout: task.net_of({}).laid_out(layout).train() for layout in LAYOUTS}
    times: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    for turn in range(TURNS + 1):
        for layout, net in nets.items():
            start = time.perf_counter()
            _steps(task, net)
            if turn:  # the first warms up
                times[layout].append((time.perf_counter() - start) / STEPS)
    return {layout: statistics.median(each) for layout, each in times.items()}


def _steps(task: Task, net: Net) -> None:
    sgd = torch.optim.SGD(net.parameters(), lr=1e-9, momentum=0.9, fused=True)
    size = min(max(task.batch_size, 2), len(task.data.y))
    x, y = task.data.x[:size], task.data.y[:size]
    for _ in range(STEPS):
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)


def _about(task: Task) -> dict[str, Any]:
    s = task.settings
    where = platform.processor() or platform.machine()
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else where
    return {
        "model": s.model, "shape": list(task.dataset.shape), "batch_size": s.batch_size, "bn": s.bn_of(s.model),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "device": device, "machine": platform.node(),
    }  # fmt: skip


def _key(task: Task) -> str:
    return hashlib.sha256(json.dumps(_about(task), sort_keys=True).encode()).hexdigest()[:16]
