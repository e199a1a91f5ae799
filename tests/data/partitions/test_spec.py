"""How partitions are asked for, what is refused and in which words, and the saved file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import DiskError, PartitionError
from headway.data.partitions.partition import Partition, draw
from headway.data.partitions.spec import parse

LABELS = np.random.RandomState(0).randint(10, size=1437)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("iid", "iid"),
        (" IID() ", "iid"),
        ("dir(0.1)", "dir(0.1)"),
        ("Dir( alpha = 1e-1 )", "dir(0.1)"),
        ("dir(1.0)", "dir(1)"),
        ("dir(.5, variant=plain, min_size=2, empty=refill)", "dir(0.5)"),
        ("dir(0.1, MIN_SIZE = 10, variant=Guarded)", "dir(0.1,variant=guarded,min_size=10)"),
        ("dir(0.1,variant=guarded)", "dir(0.1,variant=guarded)"),
        ("dir(0.1,variant=guarded,min_size=2)", "dir(0.1,variant=guarded,min_size=2)"),
        ("dir(0.1,min_size=0,empty=drop)", "dir(0.1,min_size=0,empty=drop)"),
        ("shard(s=2)", "shard(2)"),
        ("classes( 2 )", "classes(2)"),
        ("classes(2,missing=refuse)", "classes(2)"),
        ("natural", "natural"),
    ],
)
def test_one_way_to_write_it(text: str, canonical: str) -> None:
    assert parse(text).text == canonical
    assert parse(canonical).text == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not read as name"),
        ("dir(0.1", "does not read as name"),
        ("dir)0.1(", "does not read as name"),
        ("shrad(2)", "did you mean 'shard'"),
        ("zzz", "known: iid, dir"),
        ("dir", "needs alpha, a number above 0"),
        ("dir()", "needs alpha"),
        ("dir(0)", "alpha is '0' and must be a number above 0"),
        ("dir(-1)", "must be a number above 0"),
        ("dir(nan)", "must be a number above 0"),
        ("dir(inf)", "must be a number above 0"),
        ("dir(1e400)", "must be a number above 0"),
        ("dir(1e-400)", "must be a number above 0"),
        ("dir(1e7)", "at most 1,000,000"),
        ("dir(abc)", "alpha is 'abc'"),
        ("dir(0.1,varian=guarded)", "did you mean 'variant'"),
        ("dir(0.1,variant=guardd)", "did you mean 'guarded'"),
        ("dir(0.1,guarded)", "only the first setting, alpha"),
        ("dir(0.1,alpha=0.2)", "given twice"),
        ("dir(0.1,min_size=-1)", "a whole number, 0 or more"),
        ("dir(0.1,min_size=2.5)", "a whole number, 0 or more"),
        ("dir(0.1,)", "has no key"),
        ("shard(0)", "a whole number, 1 or more"),
        ("shard(2.0)", "a whole number, 1 or more"),
        ("shard(" + "9" * 5000 + ")", "a whole number, 1 or more"),
        ("classes(-2)", "a whole number, 1 or more"),
        ("iid(3)", "takes no settings"),
        ("iid(a=3)", "takes no settings"),
    ],
)
def test_spec_refusals(text: str, says: str) -> None:
    with pytest.raises(PartitionError) as refusal:
        parse(text)
    assert says in str(refusal.value)
    assert len(str(refusal.value)) < 300


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet="dirshaclsen()=,.0123456789+-_ \té²\x00", max_size=30) | st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        spec = parse(text)
    except PartitionError:
        return
    assert parse(spec.text) == spec


@pytest.mark.parametrize(
    ("spec", "clients", "says"),
    [
        ("iid", 0, "clients is 0 and must be a whole number, 1 or more"),
        ("iid", -3, "clients is -3"),
        ("iid", 2.0, "clients is 2.0"),
        ("iid", True, "clients is True"),
        ("iid", 2000, "2000 clients need at least 2000 samples and there are 1437"),
        (
            "dir(0.1)",
            2000,
            "2000 clients of at least 2 samples need 4000 samples and there are 1437; use at most 718",
        ),
        ("dir(0.1)", 1000, "use at most 718 clients or min_size=1"),
        ("dir(0.1,min_size=0)", 1438, "need 1438 samples and there are 1437"),
        ("dir(0.1,min_size=20)", 100, "100 clients of at least 20 samples need 2000"),
        ("dir(0.001,empty=error)", 100, "none of 100 draws at alpha=0.001"),
        (
            "shard(2)",
            7,
            "2 shards x 7 clients = 14 is not a multiple of the 10 classes; use s = 10 or clients = 5 or 10",
        ),
        ("shard(1)", 25, "use s = 2 or clients = 20 or 30"),
        ("shard(20)", 100, "100 clients x 20 shards = 2000 shards need as many samples and there are 1437"),
        ("shard(14)", 100, "samples for its 140 shards"),
        ("classes(11)", 20, "n is 11 and there are 10 classes; use n from 1 to 10"),
        (
            "classes(2)",
            3,
            "3 clients x 2 classes = 6 places cannot hold 10 classes; use at least 5 clients, n >= 4",
        ),
        ("classes(10)", 200, "samples for 200 places"),
        ("natural", 5, "this data has no groups"),
        ("nowhere.json", 5, "cannot be read"),
    ],
)
def test_draw_refusals_show_the_arithmetic(spec: str, clients: int, says: str) -> None:
    with pytest.raises(PartitionError) as refusal:
        draw(spec, LABELS, clients, 0, classes=10)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_more_clients_than_groups() -> None:
    with pytest.raises(PartitionError, match="11 clients asked for and the data has 10 groups; use at most 10"):
        draw("natural", LABELS, 11, 0, classes=10, group=LABELS)
    with pytest.raises(PartitionError, match="give one per sample"):
        draw("natural", LABELS, 5, 0, classes=10, group=LABELS[:-1])


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 10], "label 10 at sample 2"),
        ([0, -1, 1], "label -1 at sample 1"),
        ([0, 1.5, 1], "label 1.5 at sample 1"),
        ([0, float("nan")], "label nan at sample 1"),
        ([[1, 0], [0, 1]], r"shape (2, 2)"),
        (["a", "b"], "give one whole number per sample"),
    ],
)
def test_odd_labels_are_named(labels: list, says: str) -> None:
    with pytest.raises(PartitionError) as refusal:
        draw("iid", np.array(labels), 2, 0, classes=10)
    assert says in str(refusal.value)


def test_labels_of_other_types_give_the_same_partition() -> None:
    expected = draw("dir(0.5)", LABELS, 10, 0, classes=10)
    for kind in (np.int32, np.uint8, np.float64):
        other = draw("dir(0.5)", LABELS.astype(kind), 10, 0, classes=10)
        assert (other.hash(), other.labels_hash) == (expected.hash(), expected.labels_hash)


def test_saved_and_loaded(tmp_path) -> None:
    p = draw("dir(0.001,empty=drop)", LABELS, 30, 5, classes=10)
    path = tmp_path / "new" / "partition.json"
    p.save(path, LABELS)
    q = Partition.load(path, LABELS)
    assert (q.spec, q.seed, q.classes, q.labels_hash, q.notes) == (p.spec, p.seed, 10, p.labels_hash, p.notes)
    assert q.hash() == p.hash()
    assert q.index.dtype == q.offsets.dtype == np.int64
    assert json.loads(path.read_text())["counts"] == p.counts(LABELS).tolist()
    assert [f.name for f in path.parent.iterdir()] == ["partition.json"]
    assert draw(str(path), LABELS, 30, 99, classes=10).hash() == p.hash()
    p.save(path)  # over the old one
    assert Partition.load(path, LABELS).hash() == p.hash()


def test_a_saved_partition_brings_its_own_number_of_clients(tmp_path, monkeypatch) -> None:
    p = draw("dir(0.5)", LABELS, 30, 5, classes=10)
    p.save(tmp_path / "mine" / "partition.json")
    p.save(tmp_path / "iid" / "partition.json")
    monkeypatch.chdir(tmp_path)
    for text in (
        str(tmp_path / "mine" / "partition.json"),
        "mine/partition.json",
        "mine",
        "mine/",
        " ./mine ",
        "./iid",
    ):
        assert draw(text, LABELS, None, 0, classes=10).hash() == p.hash()
        assert draw(text, LABELS, 30, 0, classes=10).hash() == p.hash()
    assert draw("iid", LABELS, 30, 5, classes=10).spec == "iid"  # a known name wins over a folder
    (tmp_path / "nothing").mkdir()
    for text in ("nothing", "./nothing", "nothing/here"):
        with pytest.raises(PartitionError, match=r"nothing.*partition\.json' cannot be read"):
            draw(text, LABELS, None, 0, classes=10)


def test_loading_with_other_numbers_is_refused(tmp_path) -> None:
    path = tmp_path / "p.json"
    draw("iid", LABELS, 30, 5, classes=10).save(path)
    with pytest.raises(PartitionError, match=r"clients is 20 and .* holds 30; set clients=30"):
        draw(str(path), LABELS, 20, 0, classes=10)
    with pytest.raises(PartitionError, match="drawn for 10 classes and the data has 12"):
        draw(str(path), LABELS, 30, 0, classes=12)
    other = LABELS.copy()
    other[7] = (other[7] + 1) % 10
    for labels in (other, LABELS[:-1], LABELS + 5):
        with pytest.raises(PartitionError, match="drawn on other labels"):
            Partition.load(path, labels)


def test_damage_is_found(tmp_path) -> None:
    path = tmp_path / "p.json"
    draw("iid", LABELS, 30, 5, classes=10).save(path)
    whole = path.read_text()
    body = json.loads(whole)
    for field, value in [("seed", 6), ("spec", "dir(1)"), ("notes", {}), ("clients", body["clients"][::-1])]:
        path.write_text(json.dumps(body | {field: value}))
        with pytest.raises(PartitionError, match="damaged or was edited"):
            Partition.load(path, LABELS)
    for text in ("", whole[: len(whole) // 2], "[]", "{}", "null", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(PartitionError, match=r"not JSON|holds no saved partition"):
            Partition.load(path, LABELS)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PartitionError, match="not JSON"):
        Partition.load(path, LABELS)


def test_a_folder_that_refuses_leaves_nothing_behind(tmp_path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskError, match="cannot be written"):
        draw("iid", LABELS, 3, 0, classes=10).save(tmp_path / "file" / "p.json")
    (tmp_path / "p.json").mkdir()
    with pytest.raises(DiskError, match="cannot be written"):
        draw("iid", LABELS, 3, 0, classes=10).save(tmp_path / "p.json")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "p.json"]
