"""Values on disk: tensors in a safetensors file, all else as JSON in its header, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from toy import assert_same

from headway.base.errors import CheckpointError, DiskError
from headway.base.serialise import named, read_raw, to_bytes, write_atomic, write_values
from headway.base.tree import Tree


@named
@dataclass(frozen=True)
class Pair:
    a: torch.Tensor
    b: int


@dataclass(frozen=True)
class Plain:
    a: int


def back(tmp_path, value):
    write_values(tmp_path / "f", value)
    return read_raw(tmp_path / "f")


def test_values_come_back_as_they_were(tmp_path) -> None:
    value = {
        "tree": Tree({"u": torch.arange(3.0), "v": torch.ones(2, 2, dtype=torch.bfloat16)}),
        "flag": torch.tensor([True, False]), "n": 3, "x": 1.5, "word": "a/b", "nothing": None, "yes": True,
        7: [1, [2.5, "c"]],
    }  # fmt: skip
    assert_same(back(tmp_path, value), value)


def test_a_named_dataclass_comes_back_as_itself_and_another_as_its_fields(tmp_path) -> None:
    found = back(tmp_path, {"pair": Pair(torch.ones(2), 4), "plain": Plain(5)})
    assert_same(found["pair"], Pair(torch.ones(2), 4))
    assert found["plain"] == {"a": 5}


def test_numbers_of_numpy_become_plain_ones(tmp_path) -> None:
    found = back(tmp_path, {"x": np.float64(0.5)})
    assert type(found["x"]) is float


def test_what_is_no_value_is_named_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"v/a/b holds a set; notes are tensors"):
        to_bytes({"a": {"b": {1, 2}}})


def test_the_same_value_has_the_same_bytes() -> None:
    value = {"a": torch.ones(2), "b": {"c": torch.zeros(3), "d": 1}}
    assert to_bytes(value) == to_bytes(value)


@pytest.mark.parametrize("spoilt", [b"", b"no file of ours", None])
def test_a_file_that_cannot_be_read_says_so_by_its_name(spoilt, tmp_path) -> None:
    data = to_bytes({"a": torch.ones(100)})
    (tmp_path / "note").write_bytes(data[:-50] if spoilt is None else spoilt)
    with pytest.raises(CheckpointError, match="note cannot be read"):
        read_raw(tmp_path / "note")


def test_a_write_that_fails_leaves_the_earlier_file_and_nothing_beside_it(tmp_path, monkeypatch) -> None:
    write_atomic(tmp_path / "f", "first")

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskError, match=r"f cannot be written to .*No space left on device"):
        write_atomic(tmp_path / "f", "second")
    assert (tmp_path / "f").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
