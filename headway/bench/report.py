"""The output of `headway bench`: the table, the record, the history file."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from headway.base.errors import ConfigError, DiskError, nearest
from headway.base.machine import cores
from headway.base.strict_json import strict
from headway.base.version import __version__
from headway.bench.memory import check_proc
from headway.bench.rows import GROUPS, How, Row
from headway.bench.runner import DISTURBED, Say
from headway.models.net import NATIVE


def groups_of(text: str | None) -> list[str]:
    """`w1,growth` -> these groups of rows, in the table's order; None -> all of them."""
    if text is None:
        return list(GROUPS)
    asked = [part.strip().lower() for part in text.split(",")]
    for name in asked:
        if name not in GROUPS:
            raise ConfigError(f"only={text}: there is no measurement '{name}'; {nearest(name, GROUPS)}")
    return [name for name in GROUPS if name in asked]


def bench(only: list[str], repeats: int, workers: int | None, out: Path | None, say: Say) -> dict[str, Any]:
    """Measure, and add a line to the history file `out`, if given."""
    check_proc()
    if out is not None:
        append(out, "")  # raises before the measurement if the file cannot be written
    how = How(repeats, workers="auto" if workers is None else str(workers), say=say)
    rows = [row for name in only for row in GROUPS[name](how)]
    result = record(rows, only, repeats)
    if out is not None:
        append(out, json.dumps(strict(result), allow_nan=False) + "\n")
    return result


def record(rows: Sequence[Row], only: Sequence[str], repeats: int) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "measured": list(only),
        "repeats": repeats,
        "data": next((row.details["data"] for row in rows if "data" in row.details), None),
        "rows": [row.record() for row in rows],
    }


def machine() -> dict[str, Any]:
    """The machine and the versions: measurements are comparable if these are equal."""
    models = [line for line in _text("/proc/cpuinfo").splitlines() if line.startswith("model name")]
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": cores(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "headway": __version__,
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def commit() -> str | None:
    """The commit of this package, with a + if files were changed since; None outside a repository."""
    git, here = shutil.which("git"), Path(__file__).parents[1]
    if git is None:
        return None
    asked = [git, "-C", str(here), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=12"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() or None


def append(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(
            f"out={path}: it cannot be written ({error.strerror}); give a file in an existing, writable folder"
        ) from None
    except OSError as error:
        raise DiskError(f"out={path}: it could not be written ({error.strerror}); free space") from None


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table, then the figures from which the ratios are computed, then reservations."""
    m = result["machine"]
    console.print(
        f"{m['cpu']}, {m['cores']} cores, {m['simd']}; torch {m['torch']}, python {m['python']}; "
        f"commit {result['commit'] or 'unknown'}; medians of {result['repeats']}",
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    for heading, side in (
        ("measured", "left"),
        ("figure", "right"),
        ("target", "right"),
        ("met", "left"),
        ("", "left"),
    ):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    for row in result["rows"]:
        sign = ">=" if row["at_least"] else "<="
        target = "" if row["target"] is None else f"{sign} {number(row['target'], row['unit'])}"
        met = {None: "", True: "yes", False: "no"}[row["met"]]
        table.add_row(row["name"], number(row["value"], row["unit"]), target, met, row["about"])
    console.print(table)
    behind = [row for row in result["rows"] if "loop" in row["details"]]
    if behind:
        console.print(figures(behind))
    for text in reservations(result):
        console.print(f"note: {text}", markup=False)


def number(value: float, unit: str) -> str:
    return {"x": f"{value:.3f} x", "s": f"{value:.2f} s", "MB": f"{value:.0f} MB"}[unit]


def figures(rows: Sequence[dict[str, Any]]) -> Table:
    """The figures of headway and of the plain loop, whose ratio is in the main table."""
    table = Table(box=None, pad_edge=False)
    fma = all(row["details"].get("fma_gflops") for row in rows)  # older records have none
    of, field = ("FMA peak", "share_of_fma_peak") if fma else ("matrix product", "share_of_peak")
    headings = ("", "s/round", "samples/s", f"share of {of}", "CPU s/round", "faults/round", "peak MB", "processes")
    for heading in headings:
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        for side in ("loop", "headway"):
            d = row["details"][side]
            table.add_row(
                f"{row['name']} {side}", f"{d['seconds_per_round']:.3f}", f"{d['samples_per_second']:,.0f}",
                f"{100 * d[field]:.0f} %", f"{d['cpu_seconds_per_round']:.3f}",
                f"{d['faults_per_round']:,.0f}", f"{d['peak_mb']:.0f}", str(d["processes"]),
            )  # fmt: skip
    return table


def reservations(result: dict[str, Any]) -> list[str]:
    """Notes on how to read the figures, and on circumstances that make them less reliable."""
    notes = []
    if measured := [row["details"] for row in result["rows"] if "peak_gflops" in row["details"]]:
        notes.append(about_peaks(measured))
    if any(row["details"].get("headway", {}).get("layout", "").endswith(NATIVE) for row in result["rows"]):
        notes.append("shares of the peak count a dense backward pass; native code skips the zeros after max pools")
    if result["data"] == "random":
        notes.append("CIFAR-10 could not be loaded; random images of the same shape were used instead")
    worst = max((load for row in result["rows"] for load in _loads(row["details"])), default=0.0)
    if worst > DISTURBED:
        notes.append(
            f"other programs used up to {100 * worst:.0f} % of the cores during a turn; run it again on an idle machine"
        )
    return notes


def about_peaks(measured: Sequence[dict[str, Any]]) -> str:
    """One sentence on the peak to which the shares refer."""
    product = max(d["peak_gflops"] for d in measured)
    fma = [d.get("fma_gflops") for d in measured]
    if not all(fma):
        why = next((d["fma_missing"] for d in measured if d.get("fma_missing")), "this record has none")
        return f"shares are of the best matrix product, {product:.0f} GFLOP/s, as the FMA peak is not known: {why}"
    best = max(filter(None, fma))
    return (
        f"the FMA peak is {best:.0f} GFLOP/s, multiply-adds in registers on all cores; "
        f"best matrix product: {product:.0f} GFLOP/s, {100 * product / best:.0f} % of the FMA peak"
    )


def _loads(details: dict[str, Any]) -> list[float]:
    nested = [d["foreign_load"] for d in details.values() if isinstance(d, dict) and "foreign_load" in d]
    return [details["foreign_load"], *nested] if "foreign_load" in details else nested
