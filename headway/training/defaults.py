"""How a run is carried out unless --tune times it: by fixed rules, so that bits are the same on one kind of machine.

config.json records the choices. A run from before there were such rules goes on as it began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from headway.base.errors import ConfigError
from headway.models import native, rewrite
from headway.models.native.build import compiler
from headway.models.net import NATIVE, WHOLE, Net, normalises_by_batch
from headway.training.cohort import at_once, cohort_size, plain_steps
from headway.training.perceptron import linear_layers
from headway.training.probe import Layer, native_share, probed, runs_channels_last
from headway.training.task import Task

CACHE = 8 * 2**20  # bytes that a chunk may take at the widest layer, so that the next layer finds them in the cache
FEW, MOST = 64, WHOLE  # samples of a chunk; with fewer than FEW, preparing the weights takes longer than is saved
LEAST, LARGEST = 16, 64 * 2**20  # samples of a chunk of large images, and its bytes at the widest layer
TINY_MAP = 4  # positions; on smaller maps a convolution spends its time rearranging the weight
WORTH_COMPILING = 1.5  # seconds of a run's training; below, compiling native code takes longer
WORTH_PERCEPTRON = 0.5  # the same for perceptrons, whose code is short
COVERED = 0.2  # the smallest share of the work that native code must compute
PER_SECOND, PER_STEP, PER_CLIENT = 1e11, 1e-4, 3e-4  # operations a second; seconds of overhead of a step and a client
RECORD = ("layout", "chunk", "cohort", "folded", "at_once")
Say = Callable[[str], None]


def by_rule(task: Task, use_native: bool = True, say: Say = lambda text: None) -> Task:
    """The task as a new run carries it out; `use_native`: with native code where it is worth compiling it."""
    layers, last = probed(task), runs_channels_last(task)
    layout = layout_of(layers) if last else "channels_first"
    together = 0
    if use_native and may_compile(task):
        seconds = run_seconds(task, layers)
        try:
            if seconds >= WORTH_COMPILING and native_share(task, layers) >= COVERED:
                native.ready(rewrite.kernels(task.net_of({}).body))
                layout = "channels_last" if last and any(layer.weights for layer in layers) else "channels_first"
                layout += NATIVE
            if seconds >= WORTH_PERCEPTRON and plain_steps(task) and linear_layers(task.net_of({}).body) is not None:
                native.ready(["mlp"])
                together = at_once(task)
        except ConfigError as error:
            say(f"note: torch trains the model: {error}")
    folded = task.accelerator == "cpu" and not normalises_by_batch(task.net_of({}))
    chunk, cohort = chunk_of(layers, task.net_of({})), cohort_size(task)
    return replace(task.in_layout(layout), chunk=chunk, cohort=cohort, folded=folded, at_once=together)


def record(task: Task) -> dict[str, Any]:
    """The choices as config.json holds them."""
    return {name: getattr(task, name) for name in RECORD}


def as_recorded(task: Task, options: Mapping[str, Any]) -> Task:
    """The task as a run began; one without a record has the ways of the time before there was one."""
    known: dict[str, Any] = {"layout": "channels_first", "chunk": WHOLE, "cohort": 1, "folded": False, "at_once": 0}
    known |= {name: options[name] for name in RECORD if name in options}
    if known["at_once"]:
        native.ready(["mlp"])  # so that an error occurs before the first round
    return replace(task.in_layout(known.pop("layout")), **known)


def may_compile(task: Task) -> bool:
    """Whether native code can be used here: on the CPU, by one thread, with vectors that are wide enough."""
    return task.accelerator == "cpu" and torch.get_num_threads() == 1 and native.has_wide_vectors() and bool(compiler())


def run_seconds(task: Task, layers: list[Layer]) -> float:
    """About how long the training of a run takes, from its settings alone, so that a resumed run decides alike."""
    s, sizes = task.settings, task.data.parts.sizes()
    trained = s.sampling * s.rounds
    samples, steps = float(sizes.sum()) * s.epochs, float(np.ceil(sizes / s.batch_size).sum()) * s.epochs
    work = 3.0 * sum(layer.work for layer in layers) * samples
    return trained * (work / PER_SECOND + steps * PER_STEP + float((sizes > 0).sum()) * PER_CLIENT)


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
