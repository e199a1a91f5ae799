"""`headway export`: a run's model for others, checked by running it."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console

from headway.cli_options import number, run_folder
from headway.errors import ConfigError


def export_command(
    path: str = typer.Argument(..., metavar="RUN"),
    to: str = typer.Option(..., "--to", metavar="onnx|torch|safetensors", help="the format of the file"),
    model: str = typer.Option(
        None, help="global, calibrated or client:3; calibrated@ccvr names one of several [what the run ended with]"
    ),
    out: str = typer.Option(None, metavar="FILE", help="the file to write [RUN/exported/MODEL.FORMAT]"),
    check: str = typer.Option("1000", help="test samples on which it must agree with headway, or all; 0: no check"),
    overwrite: bool = typer.Option(False, "--overwrite", help="replace a file that headway did not export"),
    as_json: bool = typer.Option(False, "--json", help="print JSON"),
) -> None:
    """A run's model as a file for others, checked.

    onnx and torch predict without headway; safetensors holds the weights alone.
    """
    from headway.cli import emit

    samples = None if check == "all" else number("check", check, int, 0, also="all or ")
    if out is not None and not out.strip():
        raise ConfigError(f"out={out!r}: it is empty; give a file, such as --out model.onnx, or leave it out")
    from headway.export import export

    result = export(run_folder(path), to, model, out, samples, overwrite)
    emit(as_json, result, lambda c: print_export(c, result))


def print_export(console: Console, result: dict[str, Any]) -> None:
    from headway.progress import counted

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
