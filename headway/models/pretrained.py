"""Loading of weights from a safetensors file into a body or a classifier; either all weights are loaded or none."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from headway.base.errors import ModelError
from headway.models.custom import Headless

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
HEADS = ("fc", "classifier", "head", "linear")
COUNTER = "num_batches_tracked"
STATISTICS = ("running_mean", "running_var")


def load_body(body: nn.Module, path: Path) -> None:
    """Load the weights of a safetensors file into the body.

    Names may start with 'body.'. Ignored are the classifier's weights, the batch counters, and running statistics for
    a body that keeps none. All other tensors must fit, or nothing is loaded.
    """
    target = body.inner if isinstance(body, Headless) else body
    state = target.state_dict()
    wanted = {k: v for k, v in state.items() if not k.endswith(COUNTER)}
    found = _named_for(wanted, _read(path), path)

    missing = [k for k in wanted if k not in found]
    odd = [k for k in found if k not in wanted]
    wrong = [k for k in wanted if k in found and not _fits(found[k], wanted[k])]
    if missing:
        hint = f", and has {len(odd)} names that the model lacks (first: '{odd[0]}')" if odd else ""
        raise ModelError(
            f"weights file '{path}' lacks '{missing[0]}' ({len(missing)} of {len(wanted)} names){hint}; "
            "choose the model these weights were made for"
        )
    if wrong:
        name = wrong[0]
        raise ModelError(
            f"weights file '{path}' has '{name}' as {_describe(found[name])} where the model needs "
            f"{_describe(wanted[name])} ({len(wrong)} of {len(wanted)} differ); "
            "choose the model and the input shape these weights were made for"
        )
    if odd:
        raise ModelError(
            f"weights file '{path}' has '{odd[0]}' ({len(odd)} names) that the model lacks; "
            "choose the model these weights were made for, or remove these names from the file"
        )
    for name, weight in found.items():
        wanted[name].copy_(weight)  # the state dict shares memory with the body


def load_head(head: nn.Module, path: Path) -> None:
    """Load the file's `head.` tensors into the classifier: all of its parameters, or nothing."""
    found = {k.removeprefix("head."): v for k, v in _read(path).items() if k.startswith("head.")}
    for name, p in head.named_parameters():
        if name not in found or not _fits(found[name], p):
            has = _describe(found[name]) if name in found else "nothing"
            raise ModelError(
                f"weights_head=true: the classifier needs 'head.{name}' as {_describe(p)} and '{path}' has {has}; "
                "give the model.safetensors of a run with the same head and classes, or leave weights_head out"
            )
    with torch.no_grad():
        for name, p in head.named_parameters():
            p.copy_(found[name])


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"weights={path}: there is no such file; check the path")
    if path.suffix.lower() in PICKLED:
        raise ModelError(
            f"weights file '{path}' may be a pickle, which can run code when it is opened; "
            "convert it with safetensors.torch.save_file(state_dict, 'weights.safetensors')"
        )
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as e:
        raise ModelError(
            f"weights={path}: it is not a readable safetensors file (truncated?); write one with "
            "safetensors.torch.save_file(state_dict, 'weights.safetensors')"
        ) from e
    return tensors


def _named_for(wanted: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The file's tensors under the body's names, without those to ignore (see `load_body`)."""
    found: dict[str, Tensor] = {}
    for key, value in tensors.items():
        # names of a user's network start with 'inner.', as custom.Headless wraps it
        names = (key, key.removeprefix("body."), key.removeprefix("body.").removeprefix("inner."))
        name = next((n for n in names if n in wanted), names[-1])
        if name not in wanted and (name.split(".")[0] in HEADS or name.split(".")[-1] in (COUNTER, *STATISTICS)):
            continue
        if name in found:
            raise ModelError(f"weights file '{path}' has '{name}' twice, with and without a prefix; keep one")
        found[name] = value
    return found


def _fits(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and given.is_floating_point() == wanted.is_floating_point()


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
