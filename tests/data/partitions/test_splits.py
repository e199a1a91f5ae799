"""Local splits: shares by hand, the test set dealt like the training labels, groups kept together."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import PartitionError
from headway.data.partitions.partition import Partition, draw
from headway.data.partitions.splits import Split, split

TRAIN = np.random.RandomState(0).randint(10, size=1437)
TEST = np.random.RandomState(1).randint(10, size=360)


def by_hand(parts: list[list[int]], classes: int) -> Partition:
    offsets = np.cumsum([0, *map(len, parts)])
    index = np.array(list(chain.from_iterable(parts)), dtype=np.int64)
    return Partition("by hand", 0, index, offsets, classes, "", {})


def owned(s: Split, labels: np.ndarray, classes: int) -> list[list[int]]:
    return s.test.class_counts(labels, classes).tolist()


def test_none_has_empty_tests() -> None:
    p = draw("dir(0.5)", TRAIN, 10, 0, classes=10)
    s = split(p, "none", TRAIN, None, 0)
    assert s.train.hash() == p.hash()
    assert len(s.test) == 10
    assert s.test.sizes().sum() == 0
    assert len(s.test[9]) == 0


@pytest.mark.parametrize(
    ("how", "sizes", "tests"),
    [
        ("0.3", [1, 2, 3, 4, 10, 0], [0, 0, 0, 1, 3, 0]),
        ("0.25", [1, 3, 4, 8, 11, 0], [0, 0, 1, 2, 2, 0]),
        ("0.5", [1, 2, 3, 4, 5, 0], [0, 1, 1, 2, 2, 0]),
        ("0.9999999999999999", [1, 2, 3, 5, 9, 0], [0, 1, 2, 4, 8, 0]),
    ],
)
def test_share_rounds_down_and_leaves_one_to_train(how: str, sizes: list[int], tests: list[int]) -> None:
    ends = np.cumsum([0, *sizes])
    p = by_hand([list(range(a, b)) for a, b in pairwise(ends)], 1)
    s = split(p, how, np.zeros(ends[-1], dtype=np.int64), None, 0)
    assert s.test_from == "train"
    assert s.test.sizes().tolist() == tests
    for k in range(len(p)):
        assert sorted([*s.train[k], *s.test[k]]) == sorted(p[k])


def test_share_is_drawn_per_client_and_by_seed() -> None:
    p = draw("dir(0.5)", TRAIN, 10, 0, classes=10)
    s = split(p, " 0.30 ", TRAIN, TEST, 1)
    assert split(p, "0.3", TRAIN, TEST, 1).test.hash() == s.test.hash()
    assert split(p, "0.3", TRAIN, TEST, 2).test.hash() != s.test.hash()
    # a client's split depends on its own data only: the others may change
    alone = by_hand([p[0].tolist(), list(range(5))], 10)
    assert np.array_equal(split(alone, "0.3", TRAIN, None, 1).test[0], s.test[0])


def test_shard_deals_in_proportion_by_hand() -> None:
    # class 0: 3, 1, 0 training samples and 8 test samples -> 6, 2, 0
    # class 1: 1, 1, 1 and 4 test samples -> 1 each; the one left to whoever is due the most: all equal, first
    # class 2: held by nobody, its 5 test samples go to nobody
    labels = np.array([0, 0, 0, 1, 0, 1, 1, 2])
    p = by_hand([[0, 1, 2, 3], [4, 5], [6]], 3)
    test = np.array([2] * 5 + [1] * 4 + [0] * 8)
    s = split(p, "shard", labels, test, 0)
    assert s.test_from == "test"
    assert s.train.hash() == p.hash()
    assert owned(s, test, 3) == [[6, 2, 0], [2, 1, 0], [0, 1, 0]]
    assert len(np.unique(s.test.index)) == 12


def test_shard_gives_the_largest_remainders_first() -> None:
    labels = np.zeros(10, dtype=np.int64)
    p = by_hand([[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]], 1)
    test = np.zeros(8, dtype=np.int64)  # 0.8, 2.4, 4.8 -> 0, 2, 4 and two left for the first and the last
    assert split(p, "shard", labels, test, 0).test.sizes().tolist() == [1, 2, 5]


def test_shard_does_not_favour_the_first_clients() -> None:
    labels = np.repeat(np.arange(10), 100)
    p = draw("iid", labels, 100, 0, classes=10)
    test = np.repeat(np.arange(10), 50)  # half a test sample per client and class
    sizes = split(p, "shard", labels, test, 0).test.sizes()
    assert (sizes == 5).all()


@pytest.mark.parametrize("spec", ["shard(2)", "classes(2)", "shard(5)"])
def test_shard_repeats_the_label_assignment(spec: str) -> None:
    labels, test = np.repeat(np.arange(10), 500), np.repeat(np.arange(10), 100)
    p = draw(spec, labels, 100, 0, classes=10)
    s = split(p, "shard", labels, test, 3)
    assert np.array_equal(s.test.class_counts(test, 10) * 5, p.counts(labels))
    assert sorted(s.test.index.tolist()) == list(range(1000))
    assert split(p, "shard", labels, test, 4).test.hash() != s.test.hash()


def test_natural_keeps_groups_together() -> None:
    group = np.random.RandomState(5).randint(40, size=1437)
    group_test = np.random.RandomState(6).randint(-1, 40, size=360)
    p = draw("natural", TRAIN, 15, 0, classes=10, group=group)
    s = split(p, "shard", TRAIN, TEST, 0, group=group, group_test=group_test)
    for k in range(15):
        assert np.array_equal(s.test[k], np.flatnonzero(group_test == group[p[k][0]]))
    names, names_test = group.astype(str), group_test.astype(str)
    words = draw("natural", TRAIN, 15, 0, classes=10, group=names)
    s = split(words, "shard", TRAIN, TEST, 0, group=names, group_test=names_test)
    assert all((names_test[s.test[k]] == names[words[k][0]]).all() for k in range(15))
    turned = Partition("natural", 0, np.array([2, 3, 0, 1]), np.array([0, 2, 4]), 10, "", {})
    s = split(turned, "shard", TRAIN[:4], TEST[:3], 0, group=np.array([5, 5, 8, 8]), group_test=np.array([5, 8, 9]))
    assert [part.tolist() for part in s.test] == [[1], [0]]
    # without groups in the test set it is dealt by label, as for the others
    assert len(split(p, "shard", TRAIN, TEST, 0, group=group).test.index) == 360


@pytest.mark.parametrize("how", ["0", "1", "0.0", "1.5", "-0.3", "nan", "inf", "30%", "shrad", "", "0,3", "1e-400"])
def test_refusals(how: str) -> None:
    p = draw("iid", TRAIN, 10, 0, classes=10)
    with pytest.raises(PartitionError, match=r"local_test") as refusal:
        split(p, how, TRAIN, TEST, 0)
    assert "0.3" in str(refusal.value)


def test_shard_without_a_test_set_or_with_odd_groups() -> None:
    group = TRAIN
    p = draw("natural", TRAIN, 10, 0, classes=10, group=group)
    with pytest.raises(PartitionError, match="no test set"):
        split(p, "shard", TRAIN, None, 0)
    with pytest.raises(PartitionError, match="no test set"):
        split(p, "shard", TRAIN, TEST[:0], 0)
    with pytest.raises(PartitionError, match="training samples have none"):
        split(p, "shard", TRAIN, TEST, 0, group_test=TEST)
    with pytest.raises(PartitionError, match="give one per sample"):
        split(p, "shard", TRAIN, TEST, 0, group=group, group_test=TEST[:-1])
    with pytest.raises(PartitionError, match="name them alike"):
        split(p, "shard", TRAIN, TEST, 0, group=group, group_test=TEST.astype(str))
    with pytest.raises(PartitionError, match="label 10 at sample 0"):
        split(draw("iid", TRAIN, 10, 0, classes=10), "shard", TRAIN, TEST + 10 - TEST, 0)


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=4, max_size=40),
    tests=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    clients=st.integers(1, 4),
    how=st.sampled_from(["shard", "none", "0.1", "0.5", "0.99"]),
)
def test_no_sample_is_lost_or_used_twice(labels: list[int], tests: list[int], clients: int, how: str) -> None:
    y, t = np.array(labels), np.array(tests)
    p = draw("dir(0.3,min_size=0)", y, clients, 0, classes=4)
    s = split(p, how, y, t, 0)
    assert len(s.train) == len(s.test) == clients
    assert len(np.unique(s.test.index)) == len(s.test.index)
    assert all(len(s.train[k]) >= 1 for k in range(clients) if len(p[k]))
    if how == "shard":
        assert len(s.test.index) == np.isin(t, y).sum()
        held = p.counts(y) > 0
        assert (s.test.class_counts(t, 4)[~held] == 0).all()
    else:
        assert sorted([*s.train.index, *s.test.index]) == sorted(p.index)
