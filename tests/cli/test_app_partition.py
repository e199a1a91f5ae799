"""`headway partition`: the table, the file and the picture of a partition."""

import json
import re
from pathlib import Path

import pytest
from calling import SMALL, files, headway

from headway.data import load
from headway.data.partitions.partition import Partition
from headway.runs.run import Run

pytestmark = pytest.mark.usefixtures("in_tmp")


# ---- partition
PARTITION = ("--clients=3", "--train-size=200")


def test_partition_prints_a_row_for_each_client_and_writes_nothing_without_out():
    end = headway("partition", *PARTITION)
    assert end.code == 0
    assert end.out.startswith("digits, dir(0.1), seed 0\n")
    assert re.search(r"^ 2 +\d+", end.out, re.MULTILINE)
    assert "effective_classes: " in end.out
    assert files() == set()


def test_partition_saves_a_file_that_reads_back_and_a_picture():
    told = headway("partition", *PARTITION, "--out=p", "--json").json
    assert files("p") == {"partition.json", "partition.png"}
    assert Path("p/partition.png").read_bytes().startswith(b"\x89PNG\r\n")
    labels = load("digits").subset(200).y.numpy()
    again = Partition.load(Path("p/partition.json"), labels)
    assert again.hash() == told["hash"]
    assert again.counts(labels).tolist() == told["counts"]
    assert sum(map(sum, told["counts"])) == 200


def test_a_saved_partition_is_the_one_a_run_uses():
    saved = headway("partition", *PARTITION, "--seed=5", "--out=p", "--json").json
    assert headway("run", "fedavg", *SMALL, "--partition=p/partition.json", "--out=a").code == 0
    run = Run(Path("a"))
    assert run.config["identity"]["partition_hash"] == saved["hash"]
    clients = json.loads(Path("a/partition.json").read_text())["clients"]
    assert [client["counts"] for client in clients] == saved["counts"]


def test_drawing_the_same_partition_again_is_no_harm_and_another_is_refused():
    assert headway("partition", *PARTITION, "--out=p").code == 0
    assert headway("partition", *PARTITION, "--out=p").code == 0
    before = Path("p/partition.json").read_bytes()
    end = headway("partition", *PARTITION, "--seed=1", "--out=p")
    assert end.code == 2
    assert "out=p: it holds another partition; choose another --out, or --overwrite to replace it" in end.err
    assert Path("p/partition.json").read_bytes() == before
    assert headway("partition", *PARTITION, "--seed=1", "--out=p", "--overwrite").code == 0
    assert Path("p/partition.json").read_bytes() != before


def test_partition_has_the_options_that_mean_something_for_a_partition():
    told = headway("partition", "--help").out
    shown = set(re.findall(r"^  (?:-h, )?--([a-z-]+)", told, re.MULTILINE))
    assert shown == {
        "data", "data-dir", "train-size", "test-size", "partition", "clients", "local-test", "merge-test", "seed",
        "out", "plugin", "set", "overwrite", "json", "help",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lr=0.1"], "No such option '--lr': it belongs to `headway run` and `headway compare`; see `headway part"),
        (["--threads=2"], "No such option '--threads': it belongs to `headway run`, `headway compare` and `headway r"),
        (["--workers=2"], "No such option '--workers': it belongs to `headway run`, `headway compare`, `headway resu"),
        (["--set", "lr=0.1"], "lr=0.1: a partition is drawn without training; known: data, data_dir, "),
    ],
)
def test_partition_refuses_options_of_training(words, said):
    end = headway("partition", *PARTITION, *words, "--out=p")
    assert end.code == 2
    assert end.err.startswith(f"headway: {said}")
    assert files() == set()


def test_the_partition_of_a_run_is_not_written_over():
    headway("run", "fedavg", *SMALL, "--out=a")
    before = Path("a/partition.json").read_bytes()
    end = headway("partition", *PARTITION, "--out=a", "--overwrite")
    assert end.code == 2
    assert "out=a: it holds a run" in end.err
    assert Path("a/partition.json").read_bytes() == before
