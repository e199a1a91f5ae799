"""How values are sent between processes: in shared memory, or as bytes."""

from __future__ import annotations

import pytest
import torch
import toy

from headway.base.tree import Tree
from headway.engines import transport
from headway.engines.transport import SharedBuffer, from_array, to_array

# ---- shared memory


def test_values_come_back_through_shared_memory_or_beside_it():
    value = {"t": Tree(a=torch.arange(5.0), b=torch.ones(0)), "n": 3, "flag": torch.tensor([True, False])}
    for size in (4096, 8):  # with room for all, and with room for almost nothing
        room = SharedBuffer(size)
        toy.assert_same(room.unpack(room.pack(value), copy=True), value)


@pytest.mark.parametrize(("most", "mappings"), [(20_000, 3), (2, 2), (1, 1)])
def test_rooms_share_mappings_only_where_there_are_many_and_do_not_overlap(most, mappings, monkeypatch):
    monkeypatch.setattr(transport, "MOST_MAPPINGS", most)
    buffers = SharedBuffer.allocate(3, 100)
    told = [room.pack({"a": torch.full((20,), float(i))}) for i, room in enumerate(buffers)]
    for i, room in enumerate(buffers):
        assert room.unpack(told[i])["a"].tolist() == [float(i)] * 20
    assert len({id(room._memory) for room in buffers}) == mappings


# ---- bytes


def test_values_are_sent_as_bytes_and_arrive_in_memory_of_their_own():
    value = {
        "t": Tree(a=torch.arange(5.0), b=torch.ones(0), c=torch.tensor(3), d=torch.ones(2, 3, dtype=torch.bfloat16)),
        "flag": torch.tensor([True, False]), "n": 3, "loss": float("nan"), 7: [1.5, None, "text"],
    }  # fmt: skip
    array = to_array(value)
    array.flags.writeable = False  # as the object store hands it out
    first = from_array(array)
    toy.assert_same(first, value)
    first["t"]["a"].add_(1)
    toy.assert_same(from_array(array), value)
