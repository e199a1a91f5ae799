"""torch is imported at its first use, once, and the lazy module then answers as torch does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch as real

from headway.base.lazy import F, LazyModule, torch

BASE = "cache, errors, lazy, machine, serialise, signals, strict_json, tree"


def test_the_base_imports_no_torch() -> None:
    code = f"from headway.base import {BASE}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_attributes_are_those_of_the_real_module_and_are_kept() -> None:
    lazy = LazyModule("torch")
    assert "add" not in vars(lazy)
    assert lazy.add is real.add
    assert vars(lazy)["add"] is real.add
    assert torch.Tensor is real.Tensor
    assert F.relu is real.nn.functional.relu


def test_an_unknown_attribute_is_an_attribute_error_and_is_not_kept() -> None:
    lazy = LazyModule("torch")
    with pytest.raises(AttributeError):
        lazy.no_such_name  # noqa: B018
    assert "no_such_name" not in vars(lazy)
