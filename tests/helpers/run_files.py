"""Files of a run directory as a test reads and spoils them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch

DIGITS = {"data": "digits", "clients": 4, "partition": "dir(0.3)", "train_size": 200, "test_size": 100, "rounds": 2}


def net_of_width(width: int) -> type[torch.nn.Module]:
    """A network of a user's own for DIGITS; two of different widths have the same name."""

    class Net(torch.nn.Sequential):
        def __init__(self, classes: int = 10):
            layers = (torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
            super().__init__(torch.nn.Flatten(), *layers)

    return Net


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def unfinished(out: Path) -> None:
    """As if the run had been stopped after its last round."""
    (out / "summary.json").unlink()
    (out / "model.safetensors").unlink()


def edit(path: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def read_csv(path: Path) -> list[list[str]]:
    with open(path, newline="") as f:
        return list(csv.reader(f))
