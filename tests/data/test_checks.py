"""Data of a user's own: what it is made into, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headway.base.errors import DataError
from headway.data import Dataset, load

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 5))
Y = np.arange(30) % 3


def save(path: Path, **arrays: Any) -> str:
    np.savez(path / "own.npz", **arrays)
    return str(path / "own.npz")


def refused(path: Path, **arrays: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(save(path, **arrays))
    text = str(caught.value)
    assert text.startswith(("own.npz", str(path)))
    assert "\n" not in text
    return text


def images(path: Path, x: np.ndarray, **more: Any) -> Dataset:
    return load(save(path, x=x, y=np.arange(len(x)) % 2, **more))


def test_a_table_becomes_float32_with_a_fixed_stratified_fifth_held_out(tmp_path: Path):
    data = load(save(tmp_path, x=X, y=Y))
    assert data.x.dtype == torch.float32
    assert (data.x.shape, data.x_test.shape) == ((24, 5), (6, 5))
    assert data.y_test.bincount().tolist() == [2, 2, 2]
    assert "20 %" in data.note
    assert data.hash() == load(save(tmp_path, x=X, y=Y)).hash()
    both = torch.cat([data.x, data.x_test]).sort(0).values
    assert torch.equal(both, torch.from_numpy(X).float().sort(0).values)
    np.testing.assert_allclose(data.mean, data.x.double().mean(0), rtol=1e-12)
    assert (data.scale, data.classes, data.class_names) == (1.0, 3, ("0", "1", "2"))


def test_neither_the_files_name_nor_its_precision_decides_what_is_held_out(tmp_path: Path):
    values = X.astype(np.float32)
    np.savez(tmp_path / "one.npz", x=values, y=Y)
    np.savez(tmp_path / "two.npz", x=values.astype(np.float64), y=Y.astype(np.int8))
    one, two = load(str(tmp_path / "one.npz")), load(str(tmp_path / "two.npz"))
    assert one.hash() == two.hash()
    assert one.subset(12, 3).hash() == two.subset(12, 3).hash()
    assert (one.mean, one.std) == (two.mean, two.std)


def test_a_given_test_part_is_kept_as_it_is(tmp_path: Path):
    data = load(save(tmp_path, x=X, y=Y, x_test=X[:4], y_test=Y[:4]))
    assert torch.equal(data.x, torch.from_numpy(X).float())
    assert data.y_test.tolist() == [0, 1, 2, 0]
    assert data.note == ""


def test_a_class_with_one_sample_stays_in_training(tmp_path: Path):
    data = load(save(tmp_path, x=X, y=np.r_[[3], Y[1:]]))
    assert 3 in data.y
    assert 3 not in data.y_test


def test_no_class_with_two_samples_and_no_test_part_is_refused(tmp_path: Path):
    assert "no class with two samples" in refused(tmp_path, x=X, y=np.arange(30))


def test_clients_of_one_sample_cannot_give_a_test_part(tmp_path: Path):
    text = refused(tmp_path, x=X, y=Y, group=np.arange(30))
    assert "has no test part and none of its 30 groups has two samples to hold one out of" in text
    assert text.endswith(": give a test part, or leave the groups out")
    # the one group of two holds classes 1 and 2, which nobody else has
    alone = refused(tmp_path, x=X[:4], y=np.array([0, 0, 1, 2]), group=np.array([0, 1, 2, 2]))
    assert "what its groups could hold out is all there is of a class: add samples, or give a test part" in alone


@pytest.mark.parametrize(
    ("shape", "want"),
    [((8, 5, 6), (1, 5, 6)), ((8, 5, 6, 3), (3, 5, 6)), ((8, 3, 5, 6), (3, 5, 6)), ((8, 5, 6, 1), (1, 5, 6))],
)
def test_images_of_every_layout_become_channels_first(tmp_path: Path, shape: tuple[int, ...], want: tuple[int, ...]):
    x = RNG.integers(0, 255, shape).astype(np.uint8)
    data = images(tmp_path, x, x_test=x, y_test=np.arange(8) % 2)
    assert data.shape == want
    assert data.x.dtype == torch.uint8
    assert data.scale == 1 / 255
    assert data.note == ""
    if shape == (8, 5, 6, 3):
        assert torch.equal(data.x, torch.from_numpy(x).permute(0, 3, 1, 2))


def test_an_ambiguous_layout_is_read_channels_first_and_noted(tmp_path: Path):
    x = RNG.integers(0, 255, (8, 3, 5, 3)).astype(np.uint8)
    data = images(tmp_path, x, x_test=x, y_test=np.arange(8) % 2)
    assert torch.equal(data.x, torch.from_numpy(x))
    assert data.note == "shape [8, 3, 5, 3] read as [N, C, H, W]"


def test_integer_images_become_uint8_only_when_both_parts_fit(tmp_path: Path):
    x = RNG.integers(0, 256, (8, 4, 4)).astype(np.int64)
    y = np.arange(8) % 2
    assert images(tmp_path, x, x_test=x, y_test=y).x.dtype == torch.uint8
    wide = images(tmp_path, x, x_test=x * 100, y_test=y)
    assert wide.x.dtype == wide.x_test.dtype == torch.float32
    assert wide.scale == 1.0


def test_float_images_stay_floats(tmp_path: Path):
    data = images(tmp_path, RNG.random((8, 4, 4)))
    assert data.x.dtype == torch.float32
    assert data.scale == 1.0


def test_big_endian_and_fortran_arrays_load_with_the_same_values(tmp_path: Path):
    plain = load(save(tmp_path, x=X, y=Y)).hash()
    assert load(save(tmp_path, x=np.asfortranarray(X.astype(">f8")), y=Y.astype(">i2"))).hash() == plain


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int32, np.uint64, np.float32, np.float64])
def test_labels_of_any_exact_type_become_int64(tmp_path: Path, kind: type):
    data = load(save(tmp_path, x=X, y=Y.astype(kind), x_test=X, y_test=Y.astype(kind)[:, None]))
    assert data.y.dtype == torch.int64
    assert data.y.tolist() == data.y_test.tolist() == Y.tolist()


def test_bool_labels_are_two_classes(tmp_path: Path):
    assert load(save(tmp_path, x=X, y=Y > 0)).classes == 2


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (np.where(np.arange(30) == 4, 1.5, Y), "label 1.5 at index 4"),
        (np.where(np.arange(30) == 4, np.nan, Y), "label nan at index 4"),
        (np.where(np.arange(30) == 4, np.inf, Y), "label inf at index 4"),
        (np.where(np.arange(30) == 7, -1, Y), "label -1 at index 7"),
        (np.eye(3)[Y], "one-hot rows .*pass y.argmax"),
        (Y[:-1], r"shape \[29\] but x has 30 samples"),
        (Y.astype(str), "give integers"),
        (np.zeros(30, int), "only class 0"),
        (Y * 1000, "3 different labels but the largest is 2000"),
        (np.full(30, 2**63, np.uint64), "label 9223372036854775808 at index 0"),
    ],
)
def test_bad_labels_are_refused_by_index_and_value(tmp_path: Path, y: np.ndarray, says: str):
    import re

    assert re.search(says, refused(tmp_path, x=X, y=y))


def test_unused_label_numbers_are_kept(tmp_path: Path):
    assert load(save(tmp_path, x=X, y=Y * 2)).classes == 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_values_that_float32_cannot_hold_are_refused_with_count_and_place(tmp_path: Path, bad: float):
    x = X.copy()
    x[3, 2] = x[20, 0] = bad
    assert "x has 2 values that are NaN or infinite as float32, the first at [3, 2]" in refused(tmp_path, x=x, y=Y)
    assert "x_test has 2 values" in refused(tmp_path, x=X, y=Y, x_test=x, y_test=Y)


def test_other_bad_inputs_are_refused(tmp_path: Path):
    assert "is empty" in refused(tmp_path, x=np.zeros((0, 5)), y=np.zeros(0, int))
    assert "is empty" in refused(tmp_path, x=X, y=Y, x_test=X[:0], y_test=Y[:0])
    assert "has shape [30]" in refused(tmp_path, x=X[:, 0], y=Y)
    assert "1, 3 or 4 channels" in refused(tmp_path, x=np.zeros((30, 5, 5, 5)), y=Y)
    assert "give numbers" in refused(tmp_path, x=X.astype(complex), y=Y)
    assert "one sample of x is [5]" in refused(tmp_path, x=X, y=Y, x_test=X[:, :4], y_test=Y)
    assert "has x_test but no y_test" in refused(tmp_path, x=X, y=Y, x_test=X)
    assert "only in its test part" in refused(tmp_path, x=X, y=Y, x_test=X, y_test=Y + 1)


def test_a_constant_column_gets_std_one_but_a_constant_channel_is_refused(tmp_path: Path):
    x = X.copy()
    x[:, 1] = 0.1
    assert load(save(tmp_path, x=x, y=Y)).std[1] == 1.0
    pictures = RNG.integers(0, 255, (30, 3, 4, 4)).astype(np.uint8)
    pictures[:, 2] = 9
    assert "channel 2" in refused(tmp_path, x=pictures, y=Y)


def test_clients_are_numbered_by_the_training_part(tmp_path: Path):
    group = np.array(["zoe", "ada", "bob"])[Y]
    data = load(save(tmp_path, x=X, y=Y, group=group, x_test=X[:3], y_test=Y[:3], group_test=["bob", "new", "ada"]))
    assert data.group.tolist() == np.array([2, 0, 1])[Y].tolist()
    assert data.group_test.tolist() == [1, -1, 0]
    held = load(save(tmp_path, x=X, y=Y, group=Y * 7))
    assert torch.equal(held.group, held.y)
    assert torch.equal(held.group_test, held.y_test)


def test_bad_clients_are_refused(tmp_path: Path):
    assert "group is float64" in refused(tmp_path, x=X, y=Y, group=Y / 2)
    assert "group is int64 [29]" in refused(tmp_path, x=X, y=Y, group=Y[1:])
    assert "no group" in refused(tmp_path, x=X, y=Y, x_test=X, y_test=Y, group_test=Y)
    assert "no x_test" in refused(tmp_path, x=X, y=Y, group=Y, group_test=Y)
    names = Y.astype(str)
    assert "one kind of name" in refused(tmp_path, x=X, y=Y, group=Y, x_test=X, y_test=Y, group_test=names)
    gaps = np.where(np.arange(30) % 10 == 3, " ", names)
    said = "names no client for 3 of 30 samples, the first at index 3 (' '): fill them, or leave the groups out"
    assert refused(tmp_path, x=X, y=Y, group=gaps).endswith(f": group {said}")
    both = refused(tmp_path, x=X, y=Y, group=names, x_test=X, y_test=Y, group_test=gaps)
    assert both.endswith(f": group_test {said}")
