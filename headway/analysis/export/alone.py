"""Runs an exported file as anybody would, in a process of its own: `python -I export_alone.py KIND FILE X Z`.

It knows nothing of headway and refuses to import it, so a file that needs it fails here. X holds inputs (.npy), Z gets
the logits; of plain tensors Z gets their digests instead, since they cannot run by themselves.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

SIZES = (1, 2, 256)  # batches of these sizes, the last again and again: the batch size must be free


def batches(x: Any) -> Iterator[Any]:
    start, turn = 0, 0
    while start < len(x):
        size = SIZES[min(turn, len(SIZES) - 1)]
        yield x[start : start + size]
        start, turn = start + size, turn + 1


def run_onnx(path: str, x: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": part})[0] for part in batches(x)])


def run_torch(path: str, x: Any) -> Any:
    import torch

    torch.set_num_threads(1)
    module = torch.export.load(path).module()
    with torch.no_grad():
        return np.concatenate([module(torch.from_numpy(part)).numpy() for part in batches(x)])


def digests(path: str) -> dict[str, str]:
    from safetensors.numpy import load_file

    tensors = load_file(path)
    return {name: hashlib.sha256(np.ascontiguousarray(v).tobytes()).hexdigest() for name, v in tensors.items()}


if __name__ == "__main__":
    sys.modules["headway"] = None  # type: ignore[assignment]  # an import of it now fails
    kind, path, inputs, answer = sys.argv[1:]
    if kind == "safetensors":
        with open(answer, "w") as f:
            json.dump(digests(path), f)
    else:
        logits = {"onnx": run_onnx, "torch": run_torch}[kind](path, np.load(inputs))
        with open(answer, "wb") as out:
            np.save(out, logits)
