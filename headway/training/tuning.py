"""Choice of the fastest way to train a model's body on this machine: memory layout, native code or torch.compile.

It is measured once per machine. The results differ by rounding, so the choice is written into config.json and a resumed
run keeps it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F

from headway.base.cache import cache_dir
from headway.base.errors import ConfigError, DiskError
from headway.base.serialise import write_atomic
from headway.models import native
from headway.models.native.build import compiler, processor
from headway.models.net import COMPILED, NATIVE, Net
from headway.training.probe import native_share, probed, runs_channels_last

if TYPE_CHECKING:
    from headway.training.task import Task

LAYOUTS = ("channels_first", "channels_last")
WAYS_TO_RUN = tuple(layout + made for made in ("", COMPILED, NATIVE) for layout in LAYOUTS)  # the first unless tuned
STEPS, MOST_STEPS, TURNS, TURN_SECONDS = 3, 100, 5, 0.05
WORTH = 0.95  # largest ratio of times at which another layout is chosen, so that noise does not decide about bits
WORTH_COMPILING = 0.9  # the same for torch.compile, as every run and worker must first load or compile the code
PATIENCE = 300.0  # seconds; a body that takes longer to compile is not compiled
Say = Callable[[str], None]
Seconds = dict[str, float]


def layout_for(task: Task, cache: Path | None = None, say: Say = lambda text: None, use_native: bool = True) -> str:
    """The fastest way to train this task's body at its batch size; measured once per machine."""
    ways = candidates(task) if use_native else tuple(way for way in candidates(task) if not way.endswith(NATIVE))
    images = has_convolutions(task)
    if len(ways) == 1:
        return ways[0]
    place = cache_dir(cache) / "tuning" / f"{_key(task)}{'' if use_native else '-torch'}.json"
    try:
        found = json.loads(place.read_text())
        if found["layout"] in WAYS_TO_RUN:
            return str(found["layout"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not measured yet, or not readable: measure
    seconds = measured_apart(task, ways) if task.gpus or can_fork() else {}  # apart: the run should not keep its memory
    if not seconds and not task.gpus:
        seconds = measured(task, ways)
    if not seconds:
        return ways[0]
    last = LAYOUTS[1] in ways and seconds[LAYOUTS[1]] < WORTH * seconds[LAYOUTS[0]]
    layout = LAYOUTS[1] if last else LAYOUTS[0]
    chosen = next((way for way in ways if way.endswith(NATIVE) and seconds[way] < WORTH * seconds[layout]), layout)
    if images and compiler() and len(task.data.y) >= task.batch_size and can_fork():
        say("note: trying torch.compile on this model; this takes a minute or two, once on this machine")
        apart = measured_apart(task, (chosen, layout + COMPILED))
        seconds |= {name: s for name, s in apart.items() if name not in seconds}
        if apart and apart[layout + COMPILED] < WORTH_COMPILING * apart[chosen]:
            chosen = layout + COMPILED
    with suppress(OSError, DiskError):  # if the cache cannot be written, the next run measures again
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, json.dumps({"layout": chosen, "seconds": seconds, **_about(task)}, indent=1) + "\n")
    return chosen


def has_convolutions(task: Task) -> bool:
    """Whether the body has 2d convolutions; for others layouts do not matter, and steps are too short to compile."""
    return any(isinstance(m, nn.Conv2d) for m in task.net_of({}).body.modules())


def candidates(task: Task) -> tuple[str, ...]:
    """The ways to compare: the layouts, if there are convolutions, and native code, if it applies and can be built."""
    ways = LAYOUTS if has_convolutions(task) and runs_channels_last(task) else LAYOUTS[:1]
    if task.accelerator != "cpu" or not native_share(task, probed(task)):
        return ways
    try:
        native.ready()
    except ConfigError:
        return ways
    return (*ways, ways[-1] + NATIVE)


def measured(task: Task, ways: Sequence[str]) -> Seconds:
    """Seconds per step in each way: medians of alternating turns, so that a short load on the machine affects all."""
    nets = {way: task.in_layout(way).net_of({}).train() for way in ways}
    times: dict[str, list[float]] = {way: [] for way in ways}
    steps = STEPS
    for turn in range(TURNS + 2):
        for way, net in nets.items():
            start = time.perf_counter()
            _steps(task, net, steps)
            times[way].append((time.perf_counter() - start) / steps)
        if turn == 1:  # turn 0 warms up and compiles; turn 1 determines how many steps a turn needs
            steps = max(STEPS, min(MOST_STEPS, round(TURN_SECONDS / min(each[-1] for each in times.values()))))
    return {way: statistics.median(each[2:]) for way, each in times.items()}


def measured_apart(task: Task, ways: Sequence[str]) -> Seconds:
    """The same in a process of its own, as a process with compiler threads or a CUDA context cannot fork workers.

    Empty if it fails or takes too long; some bodies cannot be compiled.
    """
    if task.device.type == "cuda":  # this process already uses the GPU, and so cannot fork
        try:
            return measured(task, ways)
        except Exception:
            return {}
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_report, args=(task, ways, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        return dict(ours.recv()) if ours.poll(PATIENCE) else {}
    except EOFError:
        return {}
    finally:
        child.kill()
        child.join()


def _report(task: Task, ways: Sequence[str], pipe: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hide the compiler's error messages
    pipe.send(measured(task.in_one_process(), ways))


def can_fork() -> bool:
    """Whether this process may fork: after torch has run several threads, torch hangs in forked children."""
    return torch.get_num_threads() == 1


def _steps(task: Task, net: Net, steps: int) -> None:
    sgd = torch.optim.SGD(net.parameters(), lr=1e-9, momentum=0.9, fused=True)
    size = min(max(task.batch_size, 2), len(task.data.y))
    x, y = task.data.x[:size], task.data.y[:size]
    for _ in range(steps):
        net.zero_grad()
        F.cross_entropy(net(x), y).backward()
        sgd.step()
    if task.device.type == "cuda":
        torch.cuda.synchronize(task.device)


def _about(task: Task) -> dict[str, Any]:
    s = task.settings
    device = torch.cuda.get_device_name(task.device) if task.device.type == "cuda" else task.accelerator
    return {
        "model": s.model, "layers": _sha(repr(task.net_of({}).body)), "processor": _sha(processor()),
        "shape": list(task.dataset.shape), "batch_size": s.batch_size, "bn": s.bn_of(s.model),
        "threads": torch.get_num_threads(), "torch": torch.__version__, "device": device, "machine": platform.node(),
        "compiler": compiler() is not None, "native": native_share(task, probed(task)) > 0,
    }  # fmt: skip


def _key(task: Task) -> str:
    return _sha(json.dumps(_about(task), sort_keys=True) + repr(native.sources()))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
