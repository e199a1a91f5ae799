"""Where an exported file may be written: not over a file of other origin, and with the suffix of its format."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from headway.base.errors import CheckpointError, ConfigError
from headway.base.wording import option
from headway.runs.directory import another_out

KINDS = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


def check_name(place: Path, to: str) -> None:
    """A file is called what it is: .onnx, .pt2 or .safetensors."""
    if place.suffix.lower() != KINDS[to]:
        raise ConfigError(
            f"out={place}: a file of {option('to', to)} ends in {KINDS[to]}; "
            f"give such a name, as {place.with_suffix(KINDS[to]).name}"
        )


def check_free(place: Path, to: str, overwrite: bool) -> None:
    """An earlier export may be replaced; anything else only when asked to."""
    if overwrite or not place.exists():
        return
    try:
        ours = "run_hash" in json.loads(facts_in(place, to))
    except Exception:  # whatever a reader says of it, it is not what headway writes
        ours = False
    if not ours:
        raise CheckpointError(
            f"out={place}: it is there already and headway did not export it; {another_out()}, or "
            f"{option('overwrite', True)} to replace it"
        )


def facts_in(place: Path, to: str) -> Any:
    """The facts that headway puts into a file of this kind, as text."""
    if to == "onnx":
        import onnx

        props = onnx.load(str(place), load_external_data=False).metadata_props
        return {p.key: p.value for p in props}["headway"]
    if to == "torch":
        with zipfile.ZipFile(place) as archive:
            return archive.read(next(n for n in archive.namelist() if n.endswith("extra/headway.json")))
    from safetensors import safe_open

    with safe_open(str(place), framework="np") as f:
        return f.metadata()["headway"]
