"""Random orders drawn for many clients at a time: torch's, bit for bit."""

import numpy as np
import pytest
import torch

from headway.base.tree import stream
from headway.data.partitions import orders
from headway.data.partitions.orders import SHORT, reordered


@pytest.mark.parametrize("few", [0, 10_000])
@pytest.mark.parametrize("block", [3, 8192])
@pytest.mark.parametrize("seed", [0, 7, 2**31])
def test_each_client_has_the_order_of_its_own_generator(few, block, seed, monkeypatch):
    monkeypatch.setattr(orders, "FEW", few)
    monkeypatch.setattr(orders, "BLOCK", block)
    sizes = np.array([0, 1, 2, 5, SHORT, 3, SHORT + 1, 0, 40])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    index = np.arange(1000, 1000 + sizes.sum())
    expected = [
        index[a:b][torch.randperm(n, generator=stream(seed, "split", k)).numpy()]
        for k, (n, a, b) in enumerate(zip(sizes.tolist(), offsets, offsets[1:], strict=False))
    ]
    assert reordered(index, offsets, seed).tolist() == np.concatenate(expected).tolist()


def test_words_are_those_of_mt19937():
    # np.random.RandomState(5489) has the reference's seeding: its first word is 3499211612
    bits = orders._bits(np.array([5489, 0], dtype=np.uint32), 3)
    assert bits[:, 0].tolist() == [3499211612, 581869302, 3890346734]
    assert bits[:, 1].tolist() == np.random.RandomState(0).randint(2**32, size=3, dtype=np.uint32).tolist()
