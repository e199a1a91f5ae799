"""Checkpoints: whole or absent, the last two kept, damage found and passed over, other tasks refused."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch
import toy

from headway.base.errors import CheckpointError, DiskError
from headway.base.serialise import flatten, read_raw, write_atomic, write_values
from headway.base.tree import Tree
from headway.core.state import Client, Server
from headway.engines import ClientStore, DirectoryStore, LocalEngine, SpillingStore
from headway.engines.transport import SharedBuffer, from_array, to_array
from headway.methods import recipe as parse
from headway.runs import checkpoint
from headway.runs.checkpoint import Checkpoints, OtherTask
from headway.runs.directory import read_model, save_tensors
from headway.training import rounds

CPU = torch.device("cpu")
SAME = {"recipe": "toy", "lr": 0.1}


def server_at(t: int) -> Server:
    return Server(t, Tree(a=torch.full((3,), float(t))), Tree(), {"p": {"c": Tree(a=torch.arange(t)), "n": t}})


def client(k: int, value: float) -> Client:
    return Client(k, Tree(v=torch.tensor([value])), {"p": {"x": value}})


def saved(folder, count, store=None):
    points = Checkpoints(folder, SAME)
    store = store or ClientStore()
    for t in range(1, count + 1):
        store.put([client(t % 3, t)])
        points.save(server_at(t), store, {"at": t})
    return points, store


def clients_of(found) -> list[Client]:
    store = ClientStore()
    found.fill(store)
    return [store.get(k) for k in store.ids()]


def test_value_comes_back_as_it_was(tmp_path):
    saved(tmp_path, 4)
    found, damaged = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(found.server, server_at(4))
    toy.assert_same(clients_of(found), [client(0, 3), client(1, 4), client(2, 2)])
    assert (found.extra, damaged) == ({"at": 4}, [])


class Name(str):
    """A string that is more than a string, as workers of enumerations are."""


def test_numbers_of_other_libraries_are_stored_as_plain_ones():
    """np.float64 is a float; str has subclasses too. Every engine must hand over the same value."""
    value = {"rate": np.float64(1.5), "label": Name("a"), "on": True, "n": 3, "none": None}
    room = SharedBuffer(4096)
    for back in (room.unpack(room.pack(value)), from_array(to_array(value))):
        assert back == {"rate": 1.5, "label": "a", "on": True, "n": 3, "none": None}
        assert [type(v) for v in back.values()] == [float, str, bool, int, type(None)]


def test_last_two_are_kept_and_nothing_else(tmp_path):
    saved(tmp_path, 5)
    assert sorted(p.name for p in tmp_path.glob("round-*")) == ["round-000004.json", "round-000005.json"]
    assert sorted(p.name for p in tmp_path.glob("server-*")) == [
        "server-000004.safetensors",
        "server-000005.safetensors",
    ]
    named = set()
    for manifest in tmp_path.glob("round-*.json"):
        named |= set(json.loads(manifest.read_text())["manifest"]["files"])
    assert {p.name for p in tmp_path.glob("*.safetensors")} == named


def test_unchanged_clients_are_not_written_again(tmp_path):
    points, store = saved(tmp_path, 3)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("clients-*")}
    points.save(server_at(4), store, {})
    assert not list(tmp_path.glob("clients-000004-*"))
    after = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("clients-*")}
    assert after == before


def test_many_packs_are_gathered_into_one(tmp_path):
    points = Checkpoints(tmp_path, SAME)
    store = ClientStore()
    for t in range(1, 40):
        store.put([client(t, t)])
        points.save(server_at(t), store, {})
        assert len(list(tmp_path.glob("clients-*"))) <= 2 * checkpoint.MOST_PACKS
    found, _ = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(clients_of(found), [client(t, t) for t in range(1, 40)])


def written(folder, points, store, t):
    """Files of clients that a checkpoint writes."""
    before = {p.name for p in folder.glob("clients-*")}
    points.save(server_at(t), store, {})
    return {p.name for p in folder.glob("clients-*")} - before


def test_clients_at_rest_in_large_packs_are_not_written_again(tmp_path, monkeypatch):
    """More large packs than are gathered, and one client that trains: what rests, rests."""
    store = ClientStore()
    store.put([client(k, float(k)) for k in range(40)])
    monkeypatch.setattr(checkpoint, "PACK_BYTES", 10)  # two clients a pack, each of them large
    points = Checkpoints(tmp_path, SAME)
    assert len(written(tmp_path, points, store, 1)) == 20
    for t in range(2, 8):
        store.put([client(7, 100.0 * t)])
        assert len(written(tmp_path, points, store, t)) == 1
    found, _ = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(
        sorted(clients_of(found), key=lambda c: c.id), [client(k, 700.0 if k == 7 else float(k)) for k in range(40)]
    )


@pytest.mark.parametrize("reloaded", [False, True])
def test_what_is_left_of_an_outdated_pack_is_gathered(tmp_path, reloaded):
    """A pack of five: with two of them newer elsewhere it stays, with three the other two move and it goes."""
    points, store = Checkpoints(tmp_path, SAME), ClientStore()
    store.put([client(k, k) for k in range(5)])
    points.save(server_at(1), store, {})
    for t, k in enumerate((0, 1, 2), 2):
        if reloaded:
            points = Checkpoints(tmp_path, SAME)
            points.load(CPU)
        store.put([client(k, 10 * t)])
        points.save(server_at(t), store, {})
        found, _ = Checkpoints(tmp_path, SAME).load(CPU)
        pack = points._where[4]
        assert pack == ("clients-000001-0.safetensors" if k < 2 else "clients-000004-0.safetensors")
    points.save(server_at(5), store, {})
    points.save(server_at(6), store, {})
    assert not (tmp_path / "clients-000001-0.safetensors").exists()  # no kept manifest names it
    found, _ = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(clients_of(found), [client(0, 20), client(1, 30), client(2, 40), client(3, 3), client(4, 4)])


def test_a_second_checkpoint_of_a_round_writes_over_no_pack(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PACK_BYTES", 10)
    points, store = saved(tmp_path, 3)
    store.put([client(2, 22.0)])
    assert all(name.startswith("clients-000003-") for name in written(tmp_path, points, store, 3))
    found, damaged = Checkpoints(tmp_path, SAME).load(CPU)
    assert damaged == []
    assert {c.id for c in clients_of(found)} == set(store.ids())
    toy.assert_same(sorted(clients_of(found), key=lambda c: c.id), [store.get(k) for k in sorted(store.ids())])


def test_large_state_is_cut_into_packs(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PACK_BYTES", 10)
    store = ClientStore()
    store.put([client(k, k) for k in range(9)])
    Checkpoints(tmp_path, SAME).save(server_at(1), store, {})
    assert len(list(tmp_path.glob("clients-*"))) > 1
    found, _ = Checkpoints(tmp_path, SAME).load(CPU)
    assert [c.id for c in clients_of(found)] == list(range(9))


def test_a_store_is_filled_one_pack_after_another(tmp_path, monkeypatch):
    """All clients at once may not fit into memory: each pack goes to the store before the next one is read."""
    monkeypatch.setattr(checkpoint, "PACK_BYTES", 10)  # a client has 8 bytes, so a pack has two
    store = ClientStore()
    store.put([client(k, float(k)) for k in range(8)])
    Checkpoints(tmp_path / "run", SAME).save(server_at(1), store, {})
    found, _ = Checkpoints(tmp_path / "run", SAME).load(CPU)
    events, read = [], checkpoint.read_raw
    monkeypatch.setattr(checkpoint, "read_raw", lambda *args: events.append("read") or read(*args))

    class Noting(SpillingStore):
        def put(self, clients):
            super().put(clients)
            events.append(len(self._clients))

    again = Noting(tmp_path / "rest", budget=8)
    found.fill(again)
    assert events == ["read", 1, "read", 1, "read", 1, "read", 1]  # one stays in memory, all others are on disk
    assert again.changed == set()  # the checkpoint has them: the next one need not write them again
    toy.assert_same([again.get(k) for k in again.ids()], [client(k, float(k)) for k in range(8)])


@pytest.mark.parametrize("kind", ["server", "clients", "round"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone", "empty"])
def test_damaged_checkpoint_is_passed_over(tmp_path, kind, how):
    saved(tmp_path, 4)
    (target,) = tmp_path.glob(f"{kind}-000004*")
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        target.unlink()
    else:
        target.write_bytes({"flip": bytes(data), "cut": bytes(data[: len(data) // 2]), "empty": b""}[how])
    found, damaged = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(found.server, server_at(3))
    assert len(damaged) == (how != "gone" or kind != "round")


def test_every_flipped_bit_is_noticed(tmp_path):
    """100 random bits in the newest checkpoint: the one before is used each time, never a wrong value."""
    saved(tmp_path, 2)
    rng = torch.Generator().manual_seed(0)
    newest = sorted(tmp_path.glob("*-000002*"))
    for _ in range(100):
        target = newest[int(torch.randint(len(newest), (), generator=rng))]
        good = target.read_bytes()
        bit = int(torch.randint(8 * len(good), (), generator=rng))
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << (bit % 8)
        target.write_bytes(bytes(bad))
        found, _ = Checkpoints(tmp_path, SAME).load(CPU)
        assert found.server.round == 1 or (target.suffix == ".json" and same_text(good, bad, found))
        target.write_bytes(good)


def same_text(good, bad, found):
    """A flip in white space of the manifest changes no value."""
    return json.loads(good) == json.loads(bytes(bad)) and found.server.round == 2


def test_checkpoint_of_another_task_is_refused_naming_the_field(tmp_path):
    saved(tmp_path, 2)
    with pytest.raises(OtherTask, match=r"lr: 0\.1 there, 0\.2 here"):
        Checkpoints(tmp_path, SAME | {"lr": 0.2}).load(CPU)


def test_no_checkpoint_is_no_error(tmp_path):
    assert Checkpoints(tmp_path / "none", SAME).load(CPU) == (None, [])


def test_failed_write_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch):
    points, store = saved(tmp_path, 3)
    calls = []

    def full(fd):
        calls.append(fd)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store.put([client(7, 7)])
    with pytest.raises(DiskError, match="No space left"):
        points.save(server_at(4), store, {})
    monkeypatch.undo()
    assert calls
    found, damaged = Checkpoints(tmp_path, SAME).load(CPU)
    toy.assert_same(found.server, server_at(3))
    assert damaged == []
    assert not list(tmp_path.glob(".*.tmp"))


def test_directory_store_survives_any_number_of_clients_in_flat_memory(tmp_path):
    store = DirectoryStore(tmp_path / "s")
    store.put([client(k, k) for k in range(50)])
    assert store.ids() == list(range(50))
    toy.assert_same(store.get(17), client(17, 17))
    assert store.get(99) is None
    assert not store._clients


def test_blank_client_is_not_stored():
    store = ClientStore()
    store.put([Client(0, Tree(), {}), Client(1, Tree(), {"p": {}}), client(2, 1)])
    assert store.ids() == [2]


def test_what_cannot_be_stored_is_refused_by_name():
    with pytest.raises(TypeError, match="v/fn holds a function"):
        flatten({"fn": lambda: 0}, {})


def test_atomic_write_replaces_whole_or_not_at_all(tmp_path):
    target = tmp_path / "a.txt"
    write_atomic(target, "one")
    write_atomic(target, "two")
    assert target.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_foreign_file_is_not_read(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\x80\x04not a safetensors file")
    with pytest.raises(CheckpointError, match="damaged or not a headway file"):
        read_raw(path)
    write_values(path, {"a": 1})
    assert read_raw(path) == {"a": 1}


def test_client_state_exists_only_for_those_who_took_part():
    task = toy.skewed(6, sampling=0.34, train_size=300)
    engine = LocalEngine()
    rounds.run(parse("scaffold"), task, engine, 1)
    assert engine.store.ids() == task.sampling(0)
    assert len(engine.store.ids()) == 2


def test_round_cut_short_leaves_no_trace():
    """A tick that raises between two clients: no client remembers the round."""
    task = toy.skewed(6, train_size=300)

    class Cut(Exception):
        pass

    def tick(done, total):
        if done == 3:
            raise Cut

    engine = LocalEngine(tick=tick)
    with pytest.raises(Cut):
        rounds.run(parse("scaffold"), task, engine, 1)
    assert engine.store.ids() == []


def test_same_model_gives_the_same_bytes(tmp_path):
    """A header with several entries is written in a random order: twelve writes would show it."""
    tensors = Tree(b=torch.ones(2), a=torch.zeros(3))
    written = set()
    for i in range(12):
        save_tensors(tensors, tmp_path / f"{i}.safetensors", "fedavg", {})
        written.add((tmp_path / f"{i}.safetensors").read_bytes())
    assert len(written) == 1
    back, header = read_model(tmp_path / "0.safetensors")
    toy.assert_same(back, Tree(a=torch.zeros(3), b=torch.ones(2)))
    assert header["recipe"] == "fedavg"
