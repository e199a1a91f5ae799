from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import headway
from headway.base.errors import DataError
from headway.data import DATASETS, Dataset, load
from headway.data.checks import moments, renumber


def small(n: int = 40, groups: int = 8) -> Dataset:
    y = torch.arange(n) % 4
    x = torch.arange(n * 6, dtype=torch.uint8).reshape(n, 1, 2, 3)
    group = torch.arange(n) % groups
    return Dataset("small", x, y, x[:10], y[:10], 4, tuple("abcd"), (0.5,), (0.2,), 1 / 255, group, group[:10])


def test_shape_is_that_of_one_sample():
    assert small().shape == (1, 2, 3)


def test_hash_is_stable_and_changes_with_every_array():
    data = small()
    assert data.hash() == small().hash()
    assert len(data.hash()) == 64
    changed = [
        replace(data, x=data.x.flip(0)),
        replace(data, y=data.y.flip(0)),
        replace(data, x_test=data.x_test.flip(0)),
        replace(data, y_test=data.y_test.flip(0)),
        replace(data, group=data.group.flip(0)),
        replace(data, group=None, group_test=None),
        replace(data, x=data.x.reshape(40, 1, 3, 2)),
        replace(data, x=data.x.float()),
    ]
    assert len({d.hash() for d in [data, *changed]}) == 1 + len(changed)


def test_hash_reads_the_values_of_a_view_not_its_memory():
    data = small()
    every_second = replace(data, x=data.x[::2], y=data.y[::2], group=data.group[::2])
    copied = replace(data, x=data.x[::2].contiguous(), y=data.y[::2].contiguous(), group=data.group[::2].contiguous())
    assert every_second.hash() == copied.hash()


def test_subset_is_fixed_in_order_and_its_test_part_does_not_depend_on_the_train_size():
    data = small()
    a, b, c = data.subset(12, 5), data.subset(12, 5), data.subset(30, 5)
    assert a.hash() == b.hash()
    assert torch.equal(a.x_test, c.x_test)
    firsts = a.x[:, 0, 0, 0].tolist()
    assert firsts == sorted(firsts)
    assert len(set(firsts)) == 12
    assert firsts != data.x[:12, 0, 0, 0].tolist()
    assert set(firsts) <= set(c.x[:, 0, 0, 0].tolist())
    assert "12 of 40" in a.note
    assert data.subset() is data


def test_subset_renumbers_clients_that_remain():
    data = small(40, groups=40)
    part = data.subset(train_size=7)
    assert part.group.tolist() == list(range(7))
    kept = part.x[:, 0, 0, 0].tolist()
    for value, client in zip(part.x_test[:, 0, 0, 0].tolist(), part.group_test.tolist(), strict=True):
        assert client == (kept.index(value) if value in kept else -1)


@pytest.mark.parametrize(("field", "sizes"), [("train_size", (0, 5)), ("train_size", (41, 5)), ("test_size", (5, 11))])
def test_subset_refuses_sizes_that_are_not_there(field: str, sizes: tuple[int, int]):
    with pytest.raises(DataError, match=f"{field} is .*give 1 to"):
        small().subset(*sizes)


def test_a_dataset_with_labels_of_another_length_or_type_is_refused():
    data = small()
    with pytest.raises(DataError, match=r"y is .* give int64 \[40\]"):
        replace(data, y=data.y[:-1])
    with pytest.raises(DataError, match=r"group is torch\.int32"):
        replace(data, group=data.group.int())


def test_renumber_keeps_the_order_of_clients():
    new, test = renumber(torch.tensor([7, 3, 7, 9]), torch.tensor([9, 4, 3, 12, 0]))
    assert new.tolist() == [1, 0, 1, 2]
    assert test.tolist() == [2, -1, 0, -1, -1]


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_moments_equal_numpy_over_several_blocks(kind: type, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (1500, 3, 80, 80)).astype(kind)  # more than one block of 2^22 values
    mean, std, constant = moments(x, 1 / 255)
    np.testing.assert_allclose(mean, x.mean((0, 2, 3), dtype=np.float64) / 255, rtol=1e-12)
    np.testing.assert_allclose(std, x.std((0, 2, 3), dtype=np.float64) / 255, rtol=1e-9)
    assert constant == []


def test_moments_of_a_large_offset_lose_nothing():
    x = (np.arange(1000, dtype=np.float64) % 2 + 1e6).astype(np.float32)[:, None]
    mean, std, _ = moments(x, 1.0)
    assert mean == (1e6 + 0.5,)
    assert std == (0.5,)


def test_digits_are_sklearns_with_every_class_in_both_parts():
    from sklearn.datasets import load_digits

    data = load("digits")
    images, labels = load_digits(return_X_y=True)
    assert data.x.dtype == torch.uint8
    assert data.shape == (1, 8, 8)
    assert data.scale == 1 / 16
    assert (len(data.y), len(data.y_test)) == (DATASETS["digits"].train, DATASETS["digits"].test)
    ours = torch.cat([data.x, data.x_test]).reshape(-1, 64), torch.cat([data.y, data.y_test])
    rows = sorted([*row, label] for row, label in zip(ours[0].tolist(), ours[1].tolist(), strict=True))
    assert rows == sorted([*map(int, row), int(label)] for row, label in zip(images, labels, strict=True))
    share = data.y_test.bincount() / (data.y.bincount() + data.y_test.bincount())
    assert ((share - 0.2).abs() < 0.005).all()
    assert data.hash() == load("digits").hash()
    assert data.mean[0] == pytest.approx(data.x.double().mean().item() / 16)
    assert data.std[0] == pytest.approx(data.x.double().std(correction=0).item() / 16)


def test_unknown_names_get_the_nearest_and_every_known_name_is_described():
    with pytest.raises(DataError, match="did you mean 'cifar10'"):
        load("cifr10")
    with pytest.raises(DataError, match="known: digits, mnist"):
        load("zzzzz")
    assert list(DATASETS) == [
        "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "cinic10", "femnist",
    ]  # fmt: skip
    assert all(entry.licence and entry.origin and len(entry.shape) == 3 for entry in DATASETS.values())
    assert [entry.name for entry in DATASETS.values() if entry.train is None] == ["femnist"]
    assert all(entry.train != 0 and entry.test != 0 for entry in DATASETS.values())


def test_arrays_become_a_data_set():
    x = torch.randn(60, 5)
    data = headway.Dataset.of(x, torch.arange(60) % 3, group=torch.arange(60) % 4)
    assert (data.classes, data.shape, len(data.y) + len(data.y_test)) == (3, (5,), 60)
    assert data.group is not None
