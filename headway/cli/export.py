"""`headway export`: a run's model as a file for other tools, checked by running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from headway.base.lazy import LazyModule
from headway.base.text import counted
from headway.cli import completion
from headway.cli.help import declare
from headway.cli.options import json_output, overwrite, plugin, run_folder_argument, text
from headway.cli.output import emit
from headway.cli.values import number, out_file_in, run_folder

if TYPE_CHECKING:
    from headway.analysis.export import export
else:  # torch comes with it
    export = LazyModule("headway.analysis.export.export")

OPTIONS = [
    text(
        "--to", required=True, metavar="onnx|torch|safetensors", about="the format of the file",
        shell_complete=completion.words("onnx", "torch", "safetensors"),
    ),
    text(
        "--model",
        about="global, calibrated or client:3; calibrated@ccvr names one of several [what the run ended with]",
    ),
    text("--out", metavar="FILE", about="the file to write [RUN/exported/MODEL.FORMAT]"),
    text(
        "--check", default="1000", about="test samples on which it must agree with headway, or all; 0: no check [1000]"
    ),
    overwrite("a file that headway did not export"),
    json_output("print JSON"),
]  # fmt: skip


@declare("export", run_folder_argument(), *OPTIONS, plugin())
def command(path: str, to: str, model: str | None, out: str | None, check: str, overwrite: bool, as_json: bool) -> None:
    """A run's model as a file for other tools, checked.

    onnx and torch predict without headway; safetensors holds the weights alone.
    """
    samples = None if check == "all" else number("check", check, int, 0, also="all or ")
    place = out_file_in(out, "model.onnx")
    result = export.export(run_folder(path), to, model, place, samples, overwrite)
    emit(as_json, result, lambda c: print_export(c, result))


def print_export(console: Console, result: dict[str, Any]) -> None:
    given, classes = result["input"], result["classes"]
    inside = "inside the file" if result["to"] != "safetensors" else "described in the file's header"
    lines = [
        f"{result['model']} model of {result['recipe']} -> {result['file']} ({result['bytes'] / 1e6:.2f} MB)",
        f"input:  x, {given['dtype']} [{', '.join(map(str, given['shape']))}] as stored; normalisation is {inside}",
        f"output: logits, float32 [batch, {len(classes)}]",
    ]
    if found := result["check"]:
        ties = f", {counted(found['ties'], 'numeric tie')}" if found["ties"] else ""
        where = "checked without headway:"
        if "tensors_equal" in found:
            whose = f"its {counted(found['tensors_equal'], 'tensor')} are the model's bit for bit"
            where = f"checked: read without headway, {whose}; in headway's network they give"
        lines.append(
            f"{where} {found['equal']}/{found['samples']} classes equal{ties}, largest logit difference "
            f"{found['largest_difference']:.2g}"
        )
    else:
        lines.append("not checked")
    if result["note"]:
        lines.append(f"note: {result['note']}")
    for line in lines:
        console.print("".join(c if c.isprintable() else "?" for c in line), markup=False)
