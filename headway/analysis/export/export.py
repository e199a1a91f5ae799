"""A run's model as a file for others, and the proof: it is run without headway and must agree.

Plain tensors cannot run: of them the proof is that another process reads the model's own, bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor, nn

from headway.analysis.export.models import Chosen, choose
from headway.analysis.export.place import KINDS, check_free, check_name
from headway.base.errors import CheckpointError, ConfigError, ModelError, nearest
from headway.base.serialise import write_atomic
from headway.base.version import __version__
from headway.base.wording import option
from headway.models.net import Net, normalises_by_batch
from headway.runs.directory import another_out, check_writable, prepare_folder
from headway.runs.posthoc import finished
from headway.runs.rebuild import recorded_recipe, unchanged_task
from headway.runs.run import Run
from headway.training.task import Task

NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
ALONE = Path(__file__).with_name("alone.py")
TRACES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node", "torch_fn")
TIE = 1e-4  # of the largest logit: classes closer than this may change places by rounding


class Standalone(nn.Module):
    """Stored inputs -> logits: normalisation, body and the one classifier that answers."""

    def __init__(self, net: Net, personal: bool):
        super().__init__()
        self.inputs, self.body = net.inputs, net.body
        self.answer = net.head.predictor(personal)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.answer(self.body(self.inputs(x.to(torch.float32))))
        return z  # [B, C]


@dataclass(frozen=True)
class Agreement:
    """How far the file's answers are headway's."""

    samples: int
    equal: int  # same class
    ties: int  # another class, and the two were as good as equal
    difference: float  # the largest of a logit

    def record(self) -> dict[str, Any]:
        return {"samples": self.samples, "equal": self.equal, "ties": self.ties, "largest_difference": self.difference}


def export(
    run: Run | str | Path, to: str, model: str | None = None, out: str | Path | None = None, check: int | None = 1000,
    overwrite: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Write a run's model for others, after it was run on `check` test samples (None: all, 0: none) and agreed."""
    check_kind(to)
    run = run if isinstance(run, Run) else Run(Path(run))
    finished(run.path)
    place = None if out is None else place_of(run, to, out)
    folder = place.parent if place else run.path / "exported"
    asked = (f"out={out}",) if place else (f"run={run.path}", f"name another place with {option('out')}")
    check_writable(folder, *asked)
    task = task_of(run)
    chosen = choose(run, model, task)
    refuse_what_cannot(chosen, run)
    place = place or folder / f"{chosen.file_name}{KINDS[to]}"
    check_free(place, to, overwrite)
    facts = facts_of(run, task, chosen)
    data = written(to, chosen, task, facts)
    agreement = None if check == 0 else agreed(to, data, chosen, task, check)
    prepare_folder(folder, *asked)
    write_atomic(place, data)
    shown = None if agreement is None else agreement.record() | checked_by(to, chosen)
    notes = [text for text in (chosen.note, weights_alone() if to == "safetensors" else None) if text]
    return {"file": str(place), "to": to, "bytes": len(data), "check": shown, "note": "; ".join(notes) or None, **facts}


def weights_alone() -> str:
    both = f"{option('to', 'onnx')} and {option('to', 'torch')}"
    return f"it holds weights and no network, which predicting needs; {both} hold both"


def checked_by(to: str, chosen: Chosen) -> dict[str, Any]:
    """Who predicted in the check; of plain tensors also how many another process found to be the model's."""
    if to == "safetensors":
        return {"run_by": "headway", "tensors_equal": len(chosen.net.tensors())}
    return {"run_by": "the file alone"}


def check_kind(to: str) -> None:
    if to not in KINDS:
        raise ConfigError(f"to={to or repr(to)}: there is no such format; {nearest(to, KINDS)}")
    if lacking := [p for p in NEEDS.get(to, ()) if importlib.util.find_spec(p) is None]:
        raise ConfigError(f"to={to}: it needs {' and '.join(lacking)}, not installed here; pip install 'headway[{to}]'")


def task_of(run: Run) -> Task:
    """The task of a finished run; its data and network must still be those it was made with."""
    recipe = recorded_recipe(run.path, run.config)
    task, _ = unchanged_task(run.path, run.config, recipe, run.task)
    return task


def refuse_what_cannot(chosen: Chosen, run: Run) -> None:
    """A model that is no function of one input, or no numbers."""
    if normalises_by_batch(chosen.net):
        raise ModelError(
            f"model={run.config['settings']['model']}: its BatchNorm looks at the whole batch (bn=batch), so a "
            f"prediction depends on its neighbours and no file can hold it; train with "
            f"{option('bn', 'running')} or {option('bn', 'group')}"
        )
    if chosen.net.tensors().not_finite() - chosen.net.fixed().keys():  # a mask may be infinite
        raise CheckpointError(
            f"{run.path}: the {chosen.what} model holds values that are no numbers; nothing to export"
        )


def place_of(run: Run, to: str, out: str | Path) -> Path:
    """The file that was asked for, where it may go."""
    place = Path(out)
    if not str(out).strip() or place.is_dir():
        raise ConfigError(f"out={str(out) or repr(out)}: it is no file name; give one, such as model{KINDS[to]}")
    check_name(place, to)
    full, home = place.resolve(), run.path.resolve()
    if full.is_relative_to(home) and not full.is_relative_to(home / "exported"):
        raise ConfigError(f"out={out}: that is among the run's own files; {another_out()}, or leave it out")
    return place


def facts_of(run: Run, task: Task, chosen: Chosen) -> dict[str, Any]:
    """What a user of the file must know; it is written into the file."""
    d, config = task.dataset, run.config
    identity = json.dumps(config["identity"], sort_keys=True)
    return {
        "headway": __version__,
        "recipe": chosen.recipe,
        "model": chosen.what,
        "seed": task.seed,
        "data": d.name,
        "run_hash": hashlib.sha256(identity.encode()).hexdigest(),
        "input": {"name": "x", "dtype": str(d.x.dtype).removeprefix("torch."), "shape": ["batch", *d.shape]},
        "output": {"name": "logits", "dtype": "float32", "shape": ["batch", task.classes]},
        "classes": [str(name) for name in d.class_names],
        "normalisation": {
            "formula": "(x * scale - mean) / std", "scale": d.scale, "mean": list(d.mean), "std": list(d.std),
        },
    }  # fmt: skip


# ---- writing
def written(to: str, chosen: Chosen, task: Task, facts: dict[str, Any]) -> bytes:
    if to == "safetensors":
        return plain_tensors(chosen, task, facts)
    facts = facts | {"normalisation": facts["normalisation"] | {"inside": True}}
    sample = torch.zeros(2, *task.dataset.shape, dtype=task.dataset.x.dtype)  # no datum: a program keeps its example
    module = Standalone(chosen.net, chosen.personal).eval()
    batch = torch.export.Dim("batch")
    try:
        with silence():
            program = torch.export.export(module, (sample,), dynamic_shapes={"x": {0: batch}})
            return as_onnx(program, sample, facts) if to == "onnx" else as_pt2(program, facts)
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise ModelError(
            f"model={task.settings.model}: it cannot be exported as {to} ({type(error).__name__}: {why}); "
            f"keep data-dependent branches out of its forward, or use {option('to', 'safetensors')}, "
            f"which holds the weights alone"
        ) from error


def as_pt2(program: Any, facts: dict[str, Any]) -> bytes:
    """What torch.export.load reads; the facts are its extra file headway.json."""
    for node in program.graph.nodes:  # they name source files of this machine
        for key in TRACES:
            node.meta.pop(key, None)
    data = io.BytesIO()
    torch.export.save(program, data, extra_files={"headway.json": json.dumps(facts)})
    return data.getvalue()


def as_onnx(program: Any, sample: Tensor, facts: dict[str, Any]) -> bytes:
    """One ONNX file; the facts are its metadata entry `headway`."""
    from onnx import checker

    batch = torch.export.Dim("batch")
    made = torch.onnx.export(
        program, (sample,), dynamo=True, input_names=["x"], output_names=["logits"], verbose=False,
        dynamic_shapes={"x": {0: batch}},
    )  # fmt: skip
    assert made is not None
    proto = without_traces(made.model_proto)
    proto.doc_string = f"{facts['recipe']} on {facts['data']}, the {facts['model']} model, by headway"
    entry = proto.metadata_props.add()
    entry.key, entry.value = "headway", json.dumps(facts)
    checker.check_model(proto)
    data: bytes = proto.SerializeToString()
    return data


def without_traces(proto: Any) -> Any:
    """The model without what its exporter noted down everywhere: source lines, paths, modules."""
    graphs = [proto.graph]
    for part in (proto, *proto.functions):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    nodes = [node for f in proto.functions for node in f.node]
    while graphs or nodes:
        for graph in graphs:
            for part in (graph, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
                part.ClearField("metadata_props")
                part.ClearField("doc_string")
            nodes += graph.node
        for node in nodes:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
        inner = [a for node in nodes for a in node.attribute]
        graphs, nodes = [g for a in inner for g in ((a.g,) if a.HasField("g") else a.graphs)], []
    return proto


def plain_tensors(chosen: Chosen, task: Task, facts: dict[str, Any]) -> bytes:
    """Tensors under their names in the net, and in the header what is needed to build a net around them."""
    s = task.settings
    shape = {
        "name": s.model,
        "bn": s.bn_of(s.model),
        "head": chosen.head,
        "answers": "personal" if chosen.personal else "global",
    }
    facts = facts | {"architecture": shape, "normalisation": facts["normalisation"] | {"inside": False}}
    tensors = chosen.net.tensors()
    data: bytes = save(
        {k: tensors[k].cpu().contiguous().clone() for k in sorted(tensors)}, {"headway": json.dumps(facts)}
    )
    return data


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Exporters talk on every channel; only what they raise matters here."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        nowhere = io.StringIO()
        quiet = contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere)
        with warnings.catch_warnings(), quiet[0], quiet[1]:
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


# ---- checking
def agreed(to: str, data: bytes, chosen: Chosen, task: Task, check: int | None) -> Agreement:
    """The file's answers beside headway's, on an even choice of test samples; a real difference is an error."""
    n = len(task.dataset.y_test)
    rows = np.linspace(0, n - 1, n if check is None else min(n, check)).astype(np.int64)
    x = task.dataset.x_test[torch.from_numpy(rows)]
    wanted = answers(chosen.net, chosen.personal, x)
    found = run_alone(to, data, x, chosen, task)
    result = compared(wanted, found)
    if result.equal + result.ties < result.samples:
        wrong = result.samples - result.equal - result.ties
        raise ModelError(
            f"to={to}: the exported file predicts another class for {wrong} of {result.samples} test samples (largest "
            f"logit difference {result.difference:.3g}), so it was not written; use another format"
        )
    return result


@torch.no_grad()
def answers(net: Net, personal: bool, x: Tensor) -> NDArray[Any]:
    net.eval()
    z = net.logits_of(x, personal)  # [N, C]
    array: NDArray[Any] = z.numpy()
    return array


def run_alone(to: str, data: bytes, x: Tensor, chosen: Chosen, task: Task) -> NDArray[Any]:
    """The logits of a fresh process that has the file, the inputs, and no headway.

    Plain tensors are only read there, and must be the model's; their logits are those of headway's own net around them.
    """
    with tempfile.TemporaryDirectory(prefix="headway-export-") as folder:
        file, inputs, answer = (Path(folder) / name for name in (f"model{KINDS[to]}", "x.npy", "answer"))
        file.write_bytes(data)
        np.save(inputs, np.ascontiguousarray(x.numpy()))
        words = [sys.executable, "-I", str(ALONE), to, str(file), str(inputs), str(answer)]
        end = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603  our own file
        if end.returncode:
            last = (end.stderr.strip().splitlines() or ["it ended without a word"])[-1]
            raise ModelError(f"to={to}: the exported file does not run by itself ({last[:300]}); use another format")
        if to != "safetensors":
            found: NDArray[Any] = np.load(answer)
            return found
        seen = json.loads(answer.read_text())
    tensors = load(data)
    if seen != {k: hashlib.sha256(v.numpy().tobytes()).hexdigest() for k, v in chosen.net.tensors().items()}:
        raise ModelError("to=safetensors: the tensors read back are not the model's; check the disk and try again")
    return answers(task.net_of(chosen.head).cpu().load(tensors).eval(), chosen.personal, x)  # type: ignore[arg-type]


def compared(wanted: NDArray[Any], found: NDArray[Any]) -> Agreement:
    """Classes and logits, [N, C] each; two classes that headway itself can hardly tell apart are a tie."""
    if wanted.shape != found.shape:
        raise ModelError(f"the exported file gives logits of shape {list(found.shape)}, not {list(wanted.shape)}")
    finite = np.isfinite(wanted) & np.isfinite(found)
    gap = np.abs(np.where(finite, wanted, 0) - np.where(finite, found, 0))
    gap[~finite & (wanted != found)] = np.inf
    ours, theirs = wanted.argmax(1), found.argmax(1)
    rows = np.arange(len(wanted))
    size = 1 + np.abs(np.where(np.isfinite(wanted), wanted, 0)).max(1, initial=0)
    near = wanted[rows, ours] - wanted[rows, theirs] <= TIE * size
    same = ours == theirs
    return Agreement(len(rows), int(same.sum()), int((near & ~same).sum()), float(gap.max(initial=0)))
