"""The run directory of a federation with more clients than partition.json has entries for."""

import json

import numpy as np
import pytest

import headway
from headway.data.partitions.packed import FEW, counts_in, unpack_counts

MANY = FEW + 1
ROWS = 2 * MANY


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """FedAvg on two samples a client, two clients a round."""
    rng = np.random.RandomState(0)
    x, y = rng.rand(ROWS, 2).astype(np.float32), rng.randint(3, size=ROWS)
    given = {"data": headway.Dataset.of(x, y, x[:30], y[:30]), "partition": "iid", "model": "mlp_small", "rounds": 2}
    out = tmp_path_factory.mktemp("large") / "a"
    given |= {"clients": MANY, "sampling": 2.5 / MANY, "workers": 1}
    return headway.run("fedavg", out=out, **given), y, given


def test_partition_holds_the_counts_of_all_clients(made):
    run, y, _ = made
    found = json.loads((run.path / "partition.json").read_text())
    assert set(found) == {
        "spec", "seed", "hash", "local_test", "class_names", "notes", "clients", "checksum",
    }  # fmt: skip
    assert (found["clients"]["number"], found["hash"]) == (MANY, run.task.partition.hash())
    assert (counts_in(found) == run.task.local.train.class_counts(y, 3)).all()
    tests = unpack_counts(found["clients"]["test_counts"])
    assert (tests == run.task.local.test.class_counts(y[:30], 3)).all()
    assert tests.sum() == 30
    assert (run.path / "partition.json").stat().st_size < 10 * MANY


def test_resume_writes_a_damaged_one_again(made):
    run, _, given = made
    file = run.path / "partition.json"
    whole = file.read_bytes()
    middle = whole.index(b'"zlib": "') + 40
    for harmed in (whole[:-1], whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        file.write_bytes(harmed)
        headway.run("fedavg", out=run.path, **given)
        assert file.read_bytes() == whole


def test_the_report_says_who_holds_what(made):
    run, y, _ = made
    page = run.report().read_text()
    assert f"{MANY:,}" in page
    assert f"{len(y):,}" in page
