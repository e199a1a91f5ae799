"""How a run is carried out unless --tune times it: by fixed rules, so that bits are the same on one kind of machine.

config.json records the choices. A run from before there were such rules goes on as it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headway.base.errors import ConfigError
from headway.models import native
from headway.models.native.build import compiler
from headway.models.net import NATIVE, WHOLE, Net, normalises_by_batch
from headway.training.cohort import cohort_size
from headway.training.probe import Layer, native_share, probed, runs_channels_last
from headway.training.task import Task

CACHE = 8 * 2**20  # bytes that a chunk may take at the widest layer, so that the next layer finds them in the cache
FEW, MOST = 64, WHOLE  # samples of a chunk; with fewer than FEW, preparing the weights takes longer than is saved
LEAST, LARGEST = 16, 64 * 2**20  # samples of a chunk of large images, and its bytes at the widest layer
TINY_MAP = 4  # positions; on smaller maps a convolution spends its time rearranging the weight
WORTH_NATIVE = 3e11  # floating-point operations of a run's training; below, compiling native code takes longer
COVERED = 0.2  # the smallest share of them that native code must compute
RECORD = ("layout", "chunk", "cohort", "folded")
Say = Callable[[str], None]


def by_rule(task: Task, use_native: bool = True, say: Say = lambda text: None) -> Task:
    """The task as a new run carries it out; `use_native`: with native code where it is worth compiling it."""
    layers, cohort = probed(task), cohort_size(task)
    last = runs_channels_last(task)
    layout = layout_of(layers) if last else "channels_first"
    if use_native and cohort == 1 and worth_native(task, layers):
        try:
            native.ready()
            layout = ("channels_last" if last and any(layer.weights for layer in layers) else "channels_first") + NATIVE
        except ConfigError as error:
            say(f"note: torch trains the model: {error}")
    folded = task.accelerator == "cpu" and not normalises_by_batch(task.net_of({}))
    chunk = chunk_of(layers, task.net_of({}))
    return replace(task.in_layout(layout), chunk=chunk, cohort=cohort, folded=folded)


def record(task: Task) -> dict[str, Any]:
    """The choices as config.json holds them."""
    return {name: getattr(task, name) for name in RECORD}


def as_recorded(task: Task, options: Mapping[str, Any]) -> Task:
    """The task as a run began; one without a record has the ways of the time before there was one."""
    known: dict[str, Any] = {"layout": "channels_first", "chunk": WHOLE, "cohort": 1, "folded": False}
    known |= {name: options[name] for name in RECORD if name in options}
    return replace(task.in_layout(known.pop("layout")), **known)


def worth_native(task: Task, layers: list[Layer]) -> bool:
    """Whether a run is large enough for native code, and spends enough of its time in layers that it computes.

    Native code has one thread. Work is estimated from the settings, so that resumed runs and workers decide alike.
    """
    if task.accelerator != "cpu" or compiler() is None or run_work(task, layers) < WORTH_NATIVE:
        return False
    return native_share(task, layers) >= COVERED


def run_work(task: Task, layers: list[Layer]) -> float:
    """Floating-point operations of a run's training: a forward pass and twice as much for the gradients."""
    s = task.settings
    return 3.0 * sum(layer.work for layer in layers) * len(task.data.parts.index) * s.sampling * s.epochs * s.rounds


def layout_of(layers: list[Layer]) -> str:
    """Channels last for images, unless most weights work on tiny maps, as VGG11's do; tables have no layout."""
    weights = sum(layer.weights for layer in layers)
    on_tiny_maps = sum(layer.weights for layer in layers if layer.positions <= TINY_MAP)
    return "channels_last" if weights and on_tiny_maps <= weights / 2 else "channels_first"


def chunk_of(layers: list[Layer], net: Net) -> int:
    """How many samples are evaluated at once: as many as the cache holds at the widest layer, but not too few.

    A body that normalises by the batch is evaluated in whole chunks as ever: its predictions depend on them.
    """
    widest = max((layer.moved for layer in layers), default=0)
    images = any(layer.weights for layer in layers)
    if not images or normalises_by_batch(net):
        return WHOLE
    few = min(FEW, max(LEAST, LARGEST // widest))
    return min(MOST, max(few, CACHE // widest))
