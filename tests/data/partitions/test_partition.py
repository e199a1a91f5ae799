"""Partitions: what holds for every partition, each kind's own law, parity, and bounded time."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from work import lines_run

import headway
from headway.base.errors import PartitionError
from headway.base.tree import seed_of
from headway.data.partitions.partition import PARTITIONS, Partition, describe, draw
from headway.data.partitions.spec import FORMS, name_of

DIGITS = np.random.RandomState(0).randint(10, size=1437)  # as many labels as digits has training samples
BALANCED = np.random.RandomState(1).permutation(np.repeat(np.arange(10), 100))
WRITERS = np.random.RandomState(2).randint(60, size=1437)
SPECS = [
    "iid",
    "dir(0.5)",
    "dir(0.05)",
    "dir(0.1,min_size=0)",
    "dir(0.05,empty=drop)",
    "dir(0.3,variant=guarded)",
    "dir(0.3,variant=perclient)",
    "shard(2)",
    "classes(2)",
    "classes(3)",
    "natural",
]


def make(
    spec: str, labels: np.ndarray = DIGITS, clients: int | None = 20, seed: int = 0, classes: int = 10
) -> Partition:
    return draw(spec, labels, clients, seed, classes=classes, group=WRITERS[: len(labels)])


@pytest.mark.parametrize("spec", SPECS)
def test_disjoint_covering_and_counted(spec: str) -> None:
    p = make(spec)
    assert p.spec == spec
    assert len(p) == 20
    assert p.index.dtype == p.offsets.dtype == np.int64
    assert len(np.unique(p.index)) == len(p.index) == len(DIGITS) - p.notes["dropped"]
    counts = p.counts(DIGITS)
    assert counts.sum(axis=1).tolist() == [len(part) for part in p]
    assert np.array_equal(counts[3], np.bincount(DIGITS[p[3]], minlength=10))
    assert p.notes["empty"] == [k for k in range(20) if len(p[k]) == 0]
    if not spec.startswith(("classes", "natural")):
        assert p.notes["dropped"] == 0


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_partition_other_seed_another(spec: str) -> None:
    p = make(spec, seed=3)
    assert make(spec, seed=3).hash() == p.hash()
    assert make(spec, seed=4).hash() != p.hash()
    assert make(spec, seed=3).client_hash(5) == p.client_hash(5) != p.client_hash(6)


def test_clients_are_reached_by_number() -> None:
    p = make("iid")
    assert np.array_equal(p[-1], p[19])
    with pytest.raises(IndexError):
        p[20]
    assert sum(len(part) for part in p) == 1437


def test_iid_is_balanced_in_every_class() -> None:
    p = make("iid", BALANCED)
    assert (p.counts(BALANCED) == 5).all()
    uneven = make("iid", clients=7)
    counts = uneven.counts(DIGITS)
    assert (np.ptp(counts, axis=0) <= 1).all()
    assert np.ptp(counts.sum(axis=1)) <= 1


def naive_plain(labels: np.ndarray, clients: int, classes: int, alpha: float, seed: int) -> list[list[int]]:
    """The definition of dir(alpha), plain variant, written with lists and loops."""
    rng = np.random.RandomState(seed)
    by_class: list[list[int]] = [[i for i, y in enumerate(labels) if y == c] for c in range(classes)]
    for positions in by_class:
        rng.shuffle(positions)
    q = rng.dirichlet(alpha * np.ones(clients), size=classes)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for c, positions in enumerate(by_class):
        start = 0
        for k in range(clients - 1):
            share = round(float(q[c, k]) * len(positions))
            parts[k] += positions[start : start + share]
            start += share
        parts[-1] += positions[start:]
    return parts


@pytest.mark.parametrize("seed", [7, 8, 9, 10])
@pytest.mark.parametrize(("alpha", "clients"), [(0.1, 20), (0.5, 3), (2.0, 200), (1.0, 1)])
def test_plain_is_the_papers_draw(seed: int, alpha: float, clients: int) -> None:
    p = make(f"dir({alpha}, min_size=0)", clients=clients, seed=seed)
    expected = naive_plain(DIGITS, clients, 10, alpha, seed)
    assert [part.tolist() for part in p] == expected
    assert p.notes["attempts"] == 1


def test_plain_draws_again_by_a_named_seed() -> None:
    clients = 40
    seed = next(s for s in range(50) if 1 < make("dir(0.3)", clients=clients, seed=s).notes["attempts"] < 100)
    p = make("dir(0.3)", clients=clients, seed=seed)
    last = p.notes["attempts"] - 1
    again = naive_plain(DIGITS, clients, 10, 0.3, seed_of("partition", seed, last) % 2**32)
    assert [part.tolist() for part in p] == again
    assert p.sizes().min() >= 2
    assert p.notes["refilled"] == 0


def test_guarded_is_the_loop_of_methods() -> None:
    p = make("dir(0.5,variant=guarded,min_size=0)", seed=11)
    rng = np.random.RandomState(11)
    parts: list[list[int]] = [[] for _ in range(20)]
    for c in range(10):
        positions = np.flatnonzero(c == DIGITS)
        rng.shuffle(positions)
        q = rng.dirichlet(0.5 * np.ones(20))
        q = np.array([x if len(part) < len(DIGITS) / 20 else 0 for x, part in zip(q, parts, strict=True)])
        cuts = (np.cumsum(q / q.sum()) * len(positions)).astype(int)[:-1]
        for part, piece in zip(parts, np.split(positions, cuts), strict=True):
            part += piece.tolist()
    assert [part.tolist() for part in p] == parts


def test_guarded_caps_sizes_and_holds_its_minimum() -> None:
    p = make("dir(0.5,variant=guarded)", clients=10)
    assert p.notes["min_size"] == 10
    assert p.sizes().min() >= 10
    assert make("dir(0.5,variant=guarded)", clients=200).notes["min_size"] == 3  # 1437 // 400
    largest_class = np.bincount(DIGITS).max()
    assert p.sizes().max() <= len(DIGITS) / 10 + largest_class


def test_guarded_survives_mass_on_full_clients_only() -> None:
    for seed in range(20):
        p = make("dir(0.000001,variant=guarded,min_size=0)", clients=5, seed=seed)
        assert len(p.index) == len(DIGITS)


def test_perclient_shares_columns() -> None:
    p = make("dir(0.1,variant=perclient,min_size=0)", seed=4)
    rng = np.random.RandomState(4)
    for c in range(10):
        rng.shuffle(np.flatnonzero(c == DIGITS))
    wish = rng.dirichlet(0.1 * np.ones(10), size=20)
    share = wish / wish.sum(axis=0)
    assert np.abs(p.counts(DIGITS) - share * np.bincount(DIGITS)).max() <= 1


@pytest.mark.parametrize("variant", ["plain", "guarded", "perclient"])
@pytest.mark.parametrize("alpha", ["0.001", "1e-6", "1e-300", "1000000"])
def test_extreme_alpha_ends_soon_with_every_client_filled(variant: str, alpha: str) -> None:
    drawn: list[Partition] = []
    work = lines_run(lambda: drawn.append(make(f"dir({alpha},variant={variant})", clients=100)))
    once = lines_run(lambda: make(f"dir(0.5,variant={variant},min_size=0)", clients=100))  # the first attempt is taken
    (p,) = drawn
    assert work <= p.notes["attempts"] * once + 10 * p.notes["refilled"] + 10 * 100
    assert p.sizes().min() >= p.notes["min_size"]
    assert len(np.unique(p.index)) == len(DIGITS)
    assert p.notes["attempts"] <= 100


def test_refill_takes_the_last_samples_of_the_largest_client() -> None:
    p = make("dir(0.001,min_size=3)", clients=50)
    drawn = make("dir(0.001,min_size=3,empty=drop)", clients=50)  # the same best draw, left as it is
    small = np.flatnonzero(drawn.sizes() < 3)
    assert p.notes["attempts"] == drawn.notes["attempts"] == 100
    assert p.notes["clients_refilled"] == len(small) > 0
    assert p.notes["refilled"] == (3 - drawn.sizes()[small]).sum()
    draws = [
        make("dir(0.001,min_size=0)", clients=50, seed=seed_of("partition", 0, a) % 2**32 if a else 0)
        for a in range(100)
    ]
    fewest = min(draws, key=lambda q: (q.sizes() < 3).sum())  # the first of the best
    assert drawn.hash() == fewest.hash()
    assert (p.sizes()[small] == 3).all()
    for k in range(50):
        if k in small:
            assert np.array_equal(p[k][: len(drawn[k])], drawn[k])
        else:
            assert np.array_equal(p[k], drawn[k][: len(p[k])])
    # one at a time from whoever is largest: nobody who gave ends more than one below another giver
    gave = [k for k in range(50) if len(p[k]) < len(drawn[k])]
    assert np.ptp(p.sizes()[gave]) <= 1


def test_drop_leaves_empty_clients_and_lists_them() -> None:
    p = make("dir(0.001,empty=drop)", clients=50)
    assert p.notes["empty"]
    assert all(len(p[k]) == 0 for k in p.notes["empty"])
    assert describe(p, DIGITS)["empty"] == len(p.notes["empty"])


@pytest.mark.parametrize("s", [1, 2, 3, 10])
def test_shard_gives_at_most_s_classes(s: int) -> None:
    p = make(f"shard({s})", BALANCED)
    counts = p.counts(BALANCED)
    assert ((counts > 0).sum(axis=1) <= s).all()
    small, large = 50 // s, -(-50 // s)  # 2 * s shards per class of 100
    assert s * small <= p.sizes().min() <= p.sizes().max() <= s * large
    if small == large:
        assert (counts % small == 0).all()


def test_shard_with_uneven_classes_gives_first_shards_one_more() -> None:
    labels = np.repeat([0, 1], [7, 10])
    p = draw("shard(1)", labels, 4, 0, classes=2)
    assert sorted(p.sizes().tolist()) == [3, 4, 5, 5]


@pytest.mark.parametrize(("n", "clients"), [(1, 20), (2, 20), (5, 30), (10, 8), (2, 7)])
def test_classes_gives_exactly_n_balanced(n: int, clients: int) -> None:
    p = make(f"classes({n})", BALANCED, clients)
    held = p.counts(BALANCED) > 0
    assert (held.sum(axis=1) == n).all()
    assert np.ptp(held.sum(axis=0)) <= 1
    for c in range(10):
        holders = held[:, c].sum()
        assert set(p.counts(BALANCED)[held[:, c], c]) == {100 // holders}
    assert p.notes["dropped"] == sum(100 % h for h in held.sum(axis=0))


def test_classes_counts_a_repeated_class_twice() -> None:
    labels = np.repeat(np.arange(3), 60)
    p = next(
        q
        for seed in range(100)
        if ((q := draw("classes(2)", labels, 3, seed, classes=3)).counts(labels) > 0).sum(axis=1).min() == 1
    )
    assert p.sizes().tolist() == [60, 60, 60]  # 3 clients x 2 places over 3 classes: 2 places of 30 each


def test_classes_may_go_missing_when_allowed() -> None:
    p = make("classes(2,missing=allow)", BALANCED, 3)
    assert len(p.notes["missing"]) == 4
    assert p.notes["dropped"] == 400


def test_natural_is_by_group() -> None:
    p = make("natural", clients=60)
    assert p.notes["groups"] == 60
    for k in range(60):
        assert np.array_equal(p[k], np.flatnonzero(k == WRITERS))
    few = make("natural", clients=10)
    chosen = [int(WRITERS[part[0]]) for part in few]
    assert chosen == sorted(set(chosen))
    assert few.notes["dropped"] == len(DIGITS) - len(few.index)


def test_natural_takes_all_groups_unless_clients_are_asked_for() -> None:
    p = make("natural", clients=None)
    assert p.hash() == make("natural", clients=60).hash()
    assert "note" not in p.notes
    assert make("natural", clients=10).notes["note"] == "10 of 60 groups are clients; the other 50 are left out"
    with pytest.raises(PartitionError, match="61 clients asked for and the data has 60 groups; use at most 60"):
        make("natural", clients=61)


def test_only_natural_and_saved_partitions_know_their_clients() -> None:
    with pytest.raises(PartitionError, match="clients is None"):
        make("iid", clients=None)


def test_empty_clients_are_noted() -> None:
    p = make("dir(0.001,empty=drop)", clients=50)
    assert p.notes["note"] == f"{len(p.notes['empty'])} of 50 clients were empty and dropped"
    bare = make("dir(0.001,min_size=0)", clients=50)
    assert bare.notes["note"] == f"{len(bare.notes['empty'])} of 50 clients have no samples and never take part"
    assert "note" not in make("dir(0.5)").notes


@pytest.mark.parametrize(
    ("spec", "samples", "clients", "says"),
    [
        ("dir(0.1)", 0, 20, "there are 0; add samples"),
        ("dir(0.1)", 1, 20, "there are 1; use 1 client and min_size=1"),
        ("dir(0.1)", 2, 20, "there are 2; use 1 client"),
        ("dir(0.1,min_size=9)", 8, 20, "there are 8; use at most 8 clients and min_size=1"),
        ("dir(0.1,min_size=30)", 100, 5, "there are 100; use at most 3 clients or min_size=20"),
        ("dir(0.1,min_size=300)", 100, 5, "there are 100; use min_size=20"),
        ("iid", 1, 20, "there are 1; use 1 client"),
        ("iid", 0, 20, "there are 0; add samples"),
        ("shard(3)", 40, 7, "is not a multiple of the 10 classes; use clients = 10"),
    ],
)
def test_advice_about_too_few_samples_can_be_followed(spec: str, samples: int, clients: int, says: str) -> None:
    labels = np.arange(samples) % 10
    with pytest.raises(PartitionError) as caught:
        draw(spec, labels, clients, 0, classes=10)
    text = str(caught.value)
    assert text.endswith(says)
    fewer = re.search(r"use (?:at most )?(\d+) client|use clients = (\d+)", text)
    smaller = re.search(r"(and|or|use) min_size=(\d+)", text)
    if fewer and not (smaller and smaller[1] == "and"):
        draw(spec, labels, int(fewer[1] or fewer[2]), 0, classes=10)
    if smaller:
        draw(f"dir(0.1,min_size={smaller[2]})", labels, int(fewer[1]) if fewer else clients, 0, classes=10)


@pytest.mark.parametrize(
    ("spec", "samples", "clients", "says"),
    [
        # a draw that must not be mended has no number that surely works
        ("dir(0.1,min_size=30,empty=error)", 100, 5, "there are 100; use fewer clients or a smaller min_size"),
        # 5 classes of 3 and 5 of 2: at most 2 shards a class
        ("shard(3)", 25, 7, "use s and clients whose product is a multiple of 10 and at most 20"),
        ("shard(3)", 25, 10, "use s and clients whose product is a multiple of 10 and at most 20"),
        ("shard(10)", 9, 1, "class 9 has no samples and shards are cut from every class; add some or use iid"),
        ("classes(2)", 9, 1, "class 9 has no samples to distribute; add some or use iid"),
        ("classes(2)", 9, 5, "class 9 has no samples to distribute; add some or use iid"),
    ],
)
def test_where_no_number_helps_the_way_out_is_another(spec: str, samples: int, clients: int, says: str) -> None:
    with pytest.raises(PartitionError) as caught:
        draw(spec, np.arange(samples) % 10, clients, 0, classes=10)
    assert str(caught.value).endswith(says)


@pytest.mark.parametrize(
    "spec",
    ["iid", "dir(0.1,min_size=0)", "dir(0.1,variant=guarded,min_size=0)", "dir(0.1,variant=perclient,min_size=0)",
     "shard(2)", "natural"],
)  # fmt: skip
def test_a_draw_has_no_loop_over_clients_or_samples(spec: str) -> None:
    def work(samples: int, clients: int) -> int:
        labels = np.random.RandomState(0).randint(10, size=samples)
        group = np.arange(samples) % clients
        return lines_run(lambda: draw(spec, labels, clients, 0, classes=10, group=group))

    assert work(samples=20_000, clients=1000) < work(samples=1000, clients=10) + 100


def test_every_kind_is_listed() -> None:
    assert set(PARTITIONS) == {"iid", "dir", "shard", "classes", "natural"}
    assert [name_of(form) for form in FORMS] == list(PARTITIONS)
    assert all(f'"{form}"' in (headway.run.__doc__ or "") for form in FORMS)


@settings(max_examples=60, deadline=None)
@given(
    spec=st.one_of(
        st.sampled_from(["iid", "natural"]),
        st.builds(
            "dir({},variant={},empty={}{})".format,
            st.sampled_from(["0.000001", "0.01", "0.5", "10", "0"]),
            st.sampled_from(["plain", "guarded", "perclient"]),
            st.sampled_from(["refill", "error", "drop"]),
            st.sampled_from(["", ",min_size=0", ",min_size=4"]),
        ),
        st.builds("shard({})".format, st.integers(0, 5)),
        st.builds("classes({},missing={})".format, st.integers(0, 5), st.sampled_from(["allow", "refuse"])),
    ),
    labels=st.lists(st.integers(0, 3), min_size=0, max_size=40),
    clients=st.integers(-1, 12),
    seed=st.integers(-5, 2**40),
)
def test_any_request_is_dealt_once_or_refused(spec: str, labels: list[int], clients: int, seed: int) -> None:
    y = np.array(labels, dtype=np.int64)
    try:
        p = draw(spec, y, clients, seed, classes=4, group=y % 3)
    except PartitionError:
        return
    assert len(p) == clients
    assert len(np.unique(p.index)) == len(p.index) == len(y) - p.notes["dropped"]
    assert p.offsets[0] == 0
    assert p.offsets[-1] == len(p.index)
    assert (np.diff(p.offsets) >= 0).all()
    assert p.counts(y).sum() == len(p.index)
    if "dir" in spec and "refill" in spec:
        assert p.sizes().min() >= p.notes["min_size"]
    describe(p, y)
