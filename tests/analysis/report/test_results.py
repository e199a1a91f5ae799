"""Results in words: over how many pairs a test is."""

from __future__ import annotations

import pytest
from report_pages import read
from report_runs import write_run


@pytest.mark.parametrize(
    ("seeds", "wanted", "gain"),
    [
        (1, "Wilcoxon over 6 clients,", "6 of 6 clients gain, 0 lose"),
        (3, "Wilcoxon over 18 pairs of client and seed,", "18 of 18 pairs of client and seed gain, 0 lose"),
    ],
)
def test_clients_under_several_seeds_are_counted_as_pairs(tmp_path, seeds, wanted, gain):
    shape = {"counts": [[2, 2]] * 6}
    for seed in range(seeds):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, personal=[0.1] * 6, **shape)
        write_run(tmp_path / f"b{seed}", "moon", seed, personal=[0.2 + k / 20 for k in range(6)], **shape)
    text = read([tmp_path]).text
    assert wanted in text
    assert gain in text
    assert ("recipe pairs of client and seed mean" in text) == (seeds > 1)
