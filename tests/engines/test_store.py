"""Where clients' memory rests: in memory, on disk, or both, to the same bits."""

import errno
import gc
import os
import tempfile
import weakref

import pytest
import torch
import toy

from headway.base import machine
from headway.base.errors import DiskError
from headway.base.tree import Tree, mean
from headway.core.state import Client
from headway.engines import ClientStore, DirectoryStore, LocalEngine, SpillingStore, choice
from headway.engines import store as store_module
from headway.methods import recipe as parse
from headway.metrics.accuracy import global_score, personal_ids, received_score
from headway.runs.directory import read_model
from headway.runs.runner import Options, Progress, execute, resume
from headway.training import rounds
from headway.training.settings import settings


def client(k, size=10):
    return Client(k, Tree({"w": torch.full((size,), float(k))}), {})


def test_beyond_the_budget_the_oldest_go_to_disk(tmp_path):
    store = SpillingStore(tmp_path / "rest", budget=100)  # two clients of 40 bytes fit, a third does not
    store.put([client(0), client(1)])
    assert not (tmp_path / "rest").exists()
    store.put([client(0)])  # 0 took part again, so 1 is the oldest now
    store.put([client(2)])
    assert [p.stem for p in (tmp_path / "rest").iterdir()] == ["1"]
    assert store.ids() == [0, 1, 2]
    for k in range(3):
        assert store.get(k).personal["w"].tolist() == [float(k)] * 10
    assert store.get(3) is None
    assert store.changed == {0, 1, 2}


def test_a_client_that_comes_back_is_the_newer_one(tmp_path):
    store = SpillingStore(tmp_path / "rest", budget=50)
    store.put([client(0), client(1)])
    store.put([Client(0, Tree({"w": torch.tensor([9.0])}), {})])
    assert store.get(0).personal["w"].tolist() == [9.0]


def test_spilling_changes_no_bit(tmp_path):
    task, recipe = toy.skewed(6, sampling=0.5, train_size=200), parse("scaffold+fedper")
    states = []
    for store in (ClientStore(), SpillingStore(tmp_path / "rest", budget=20_000)):
        engine = LocalEngine(store)
        states.append(toy.state_of(rounds.run(recipe, task, engine, 4), engine))
    assert list((tmp_path / "rest").iterdir())
    toy.assert_same(*states)


@pytest.mark.parametrize("make", [DirectoryStore, lambda folder: SpillingStore(folder, budget=0)])
@pytest.mark.parametrize(("text", "own"), [("scaffold", False), ("fedper", True), ("ditto", True)])
def test_an_evaluation_reads_only_clients_whose_model_is_their_own(text, own, make, tmp_path, monkeypatch):
    """What scaffold's clients remember is no model: they share one prediction, and no file need be opened for it."""
    task, recipe = toy.skewed(6, train_size=200, local_test="0.25"), parse(text)
    engines = [LocalEngine(), LocalEngine(make(tmp_path / "rest"))]
    servers = [rounds.run(recipe, task, engine, 1) for engine in engines]
    opened, read_raw = [], store_module.read_raw
    monkeypatch.setattr(store_module, "read_raw", lambda path, device: opened.append(path) or read_raw(path, device))
    ids = personal_ids(task)
    found = []
    for server, engine in zip(servers, engines, strict=True):
        net = rounds.global_net(server, recipe, task)
        score = global_score(net, engine, task)
        found.append(received_score(server, recipe, task, engine, net, score, ids))
    assert found[0] == found[1]
    resting = sorted((tmp_path / "rest").iterdir())
    assert len(resting) >= 5  # of six clients, of whom a spilling store keeps the youngest
    assert sorted(opened) == (resting if own else [])


def test_stores_know_whom_they_hold_without_reading(tmp_path, monkeypatch):
    stores = [ClientStore(), DirectoryStore(tmp_path / "disk"), SpillingStore(tmp_path / "rest", budget=50)]
    monkeypatch.delattr(store_module, "read_raw")
    for store in stores:
        store.put([client(0), client(1), Client(2, Tree(), {})])  # 2 remembers nothing
        assert [k in store for k in range(4)] == [True, True, False, False]


def test_the_mean_of_personal_parts_reads_one_client_after_another(tmp_path):
    """All at once may not fit into memory, and the sum is the same."""
    task, recipe = toy.skewed(6, train_size=200), parse("fedper")
    alive, most = weakref.WeakSet(), []

    class Counting(DirectoryStore):
        def get(self, k):
            found = super().get(k)
            if found is not None:
                alive.update(found.personal.values())
                most.append(len(alive))
            return found

    engine = LocalEngine(Counting(tmp_path / "rest"))
    server = rounds.run(recipe, task, engine, 1)
    personal = [engine.store.get(k).personal for k in engine.store.ids()]
    expected, each = mean(personal, [1 / 6] * 6), len(personal[0])
    del personal
    alive.clear()
    most.clear()
    found = rounds.with_mean_of_personal(server, engine.store)
    toy.assert_same(found.w.only(expected.__contains__), expected)
    assert len(most) == 6
    assert max(most) <= 2 * each  # the one at hand and the one before it


def test_a_full_disk_is_told_in_one_sentence(tmp_path, monkeypatch):
    def full(path, value):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "write_values", full)
    with pytest.raises(DiskError) as told:
        SpillingStore(tmp_path / "rest", budget=50).put([client(0), client(1)])
    assert str(told.value) == (
        f"the state of client 0 cannot be written to {tmp_path / 'rest'} (No space left on device); "
        f"free space there, then headway.resume(run) continues the run"
    )
    assert told.value.exit_code == 74


class Cut(Progress):
    """Ends a run after its second round, as a power cut would."""

    def round(self, row):
        if row["round"] == 2:
            raise KeyboardInterrupt


def test_a_run_that_is_resumed_with_little_memory_ends_with_the_same_bytes(tmp_path, monkeypatch):
    s = settings({"clients": 6, "rounds": 4, "sampling": 0.5, "train_size": 200, "model": "mlp_small"})
    whole = execute("scaffold+fedper", s, tmp_path / "whole").path
    with pytest.raises(KeyboardInterrupt):
        execute("scaffold+fedper", s, tmp_path / "cut", Options(progress=Cut(), checkpoint_seconds=0))
    monkeypatch.setattr(machine, "memory", lambda: 0)
    written, write = set(), store_module.write_values
    monkeypatch.setattr(store_module, "write_values", lambda path, c: written.add(path) or write(path, c))
    resumed = resume(tmp_path / "cut").path
    assert len(written) >= 3  # those of the first two rounds, but for one that stays in memory
    assert {path.parent for path in written} == {resumed / "working"}
    assert (resumed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    for file in ("model.safetensors", "clients/0.safetensors", "clients/5.safetensors"):
        toy.assert_same(read_model(resumed / file)[0], read_model(whole / file)[0])


@pytest.mark.parametrize("kind", ["memory", "disk", "both"])
def test_what_a_client_has_forgotten_does_not_come_back(kind, tmp_path):
    stores = {"memory": ClientStore, "disk": lambda: DirectoryStore(tmp_path / "d")}
    store = stores.get(kind, lambda: SpillingStore(tmp_path / "s", budget=0))()
    store.put([client(0), client(1), client(2)])
    store.changed.clear()
    store.put([Client(0, Tree(), {}), Client(7, Tree(), {})])
    store.put([client(3)])  # of the store with a budget all but this one rest on disk
    assert store.get(0).blank
    assert store.ids() == [0, 1, 2, 3]  # who never had anything to remember is not held
    assert store.changed == {0, 3}
    assert store.get(1).personal["w"].tolist() == [1.0] * 10


def test_the_budget_holds_while_a_round_is_stored(tmp_path):
    store, held = SpillingStore(tmp_path / "rest", budget=100), []

    def coming():
        for k in range(20):
            held.append(store._held)
            yield client(k)

    store.put(coming())
    assert max(held) <= 100
    assert len(list((tmp_path / "rest").iterdir())) == 18


def test_a_round_is_stored_client_by_client_and_each_is_let_go():
    engine, alive = LocalEngine(), []
    engine._pending = [client(k) for k in range(4)]
    known = [weakref.ref(c) for c in engine._pending]

    class Watching(ClientStore):
        def put(self, clients):
            for _ in clients:
                alive.append(sum(r() is not None for r in known))

    engine.store = Watching()
    engine.commit()
    assert alive == [4, 3, 2, 1]
    assert engine._pending == []


def test_what_ends_the_making_of_a_temporary_store_leaves_no_folder(tmp_path, monkeypatch):
    def stopped(folder, task, kind):
        assert list(tmp_path.iterdir()) == [folder]
        raise KeyboardInterrupt  # as SIGTERM does at this moment

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(choice, "store_in", stopped)
    with pytest.raises(KeyboardInterrupt), pytest.warns(ResourceWarning):
        choice.passing_store(None, "disk")
    gc.collect()
    assert list(tmp_path.iterdir()) == []
