"""Where clients' memory rests: in memory, on disk, or both, to the same bits."""

import torch
import toy

from headway import rounds
from headway.engine import ClientStore, LocalEngine, SpillingStore
from headway.methods import recipe as parse
from headway.state import Client
from headway.tree import Tree


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
