"""The clients of a round in a large federation: torch's random order, without the clients that do not take part."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from headway.base.tree import stream
from headway.data.partitions.partition import Lists
from headway.training.sampling import first_of_randperm
from headway.training.task import ClientData, Task


@pytest.mark.parametrize(("n", "m"), [(3, 2), (10_000, 1), (10_001, 1), (10_001, 2), (50_000, 1000), (1_000_003, 7)])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_first_of_a_random_order_are_torchs_bit_for_bit(n, m, seed):
    whole = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert first_of_randperm(n, m, torch.Generator().manual_seed(seed)).tolist() == whole[:m].tolist()


def test_more_than_there_are_is_all_of_them():
    assert sorted(first_of_randperm(4, 9, torch.Generator())) == [0, 1, 2, 3]


def test_a_large_federation_samples_among_the_clients_with_data():
    sizes = np.arange(30_000) % 3  # clients 0, 3, 6, ... are empty
    parts = Lists(np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]))
    settings = SimpleNamespace(sampling=1e-4, seed=5)
    task = SimpleNamespace(data=ClientData(torch.empty(0), torch.empty(0), parts), settings=settings, seed=5)
    able = np.flatnonzero(sizes)
    order = torch.randperm(20_000, generator=stream(5, "sampling", 2))[:3]  # 1e-4 of 30,000 clients
    assert Task.sampling(task, 2) == sorted(able[order].tolist())
    assert Task.everyone(task) == able.tolist()
