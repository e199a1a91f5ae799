"""Large federations on disk: packed positions and counts, their damage, and small ones as before."""

import json

import numpy as np
import pytest

from headway.base.errors import PartitionError
from headway.data.partitions import packed
from headway.data.partitions.packed import FEW, counts_in, pack, pack_counts, unpack, unpack_counts
from headway.data.partitions.partition import Partition, draw

LABELS = np.random.RandomState(0).randint(10, size=FEW + 5)
MANY = FEW + 1


@pytest.mark.parametrize(
    ("values", "kind"), [([], "|u1"), ([0, 255], "|u1"), ([256], "<u2"), ([2**16], "<u4"), ([2**32, 1], "<u8")]
)
def test_a_column_comes_back_in_the_smallest_type(values, kind):
    column = pack(np.array(values, dtype=np.int64))
    assert (column["dtype"], column["length"]) == (kind, len(values))
    assert unpack(column).tolist() == values


@pytest.mark.parametrize("change", [{"length": 2}, {"length": 4}, {"length": -1}, {"dtype": "<u2"}, {"dtype": "<f8"}])
def test_a_column_that_says_something_else_is_refused(change):
    with pytest.raises(ValueError, match="column"):
        unpack(pack(np.array([1, 2, 3])) | change)


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_counts_keep_what_is_held_and_no_zeros(block, monkeypatch):
    # client 0 holds classes 2, 2, 0; client 1 nothing; client 2 class 1
    monkeypatch.setattr(packed, "BLOCK", block)
    packed_counts = pack_counts(np.array([4, 0, 1, 3]), np.array([0, 3, 3, 4]), np.array([2, 0, 9, 1, 2]), 4)
    columns = {name: unpack(packed_counts[name]).tolist() for name in ("held", "class", "samples")}
    assert columns == {"held": [2, 0, 1], "class": [0, 2, 1], "samples": [1, 2, 1]}
    table = [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]]
    assert unpack_counts(packed_counts).tolist() == table
    assert counts_in({"clients": {"counts": packed_counts}}).tolist() == table
    assert counts_in({"clients": [{"counts": row} for row in table]}).tolist() == table
    for change in ({"held": pack(np.array([2, 0, 2]))}, {"classes": 2}):
        with pytest.raises(ValueError, match="counts"):
            unpack_counts(packed_counts | change)


def test_a_large_partition_is_one_file_that_is_drawn_from_again(tmp_path):
    path = tmp_path / "p.json"
    drawn = draw("iid", LABELS, MANY, 3, classes=10)
    drawn.save(path, LABELS)
    body = json.loads(path.read_text())
    assert body["format"] == "headway partition 2"
    assert (body["clients"]["number"], body["hash"]) == (MANY, drawn.hash())
    assert unpack(body["clients"]["positions"]).tolist() == drawn.index.tolist()
    assert unpack_counts(body["counts"]).tolist() == drawn.counts(LABELS).tolist()
    again = draw(str(path), LABELS, None, 0, classes=10)
    assert (again.hash(), again.spec, again.seed, again.notes) == (drawn.hash(), "iid", 3, drawn.notes)
    assert [p.name for p in tmp_path.iterdir()] == ["p.json"]


def test_damage_to_a_large_partition_is_found(tmp_path):
    path = tmp_path / "p.json"
    draw("iid", LABELS, MANY, 3, classes=10).save(path)
    body = json.loads(path.read_text())
    sizes = body["clients"] | {"sizes": pack(np.full(MANY, 1))}
    twice = body["clients"] | {"positions": pack(np.zeros(len(LABELS), dtype=np.int64))}
    bare = {k: v for k, v in body.items() if k != "checksum"}
    for clients in (sizes, twice, {}, {"sizes": 1, "positions": 2}):
        wrong = bare | {"clients": clients}
        for changed in (body | {"clients": clients}, wrong | {"checksum": packed.checksum(wrong)}):
            path.write_text(json.dumps(changed))
            with pytest.raises(PartitionError, match="damaged or was edited"):
                Partition.load(path, LABELS)


def test_as_many_clients_as_few_are_written_one_by_one(tmp_path):
    drawn = draw("iid", LABELS, FEW, 3, classes=10)
    drawn.save(tmp_path / "p.json", LABELS)
    body = json.loads((tmp_path / "p.json").read_text())
    assert body["format"] == "headway partition 1"
    assert body["clients"] == [part.tolist() for part in drawn]
    assert body["counts"] == drawn.counts(LABELS).tolist()
