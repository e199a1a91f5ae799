"""How many clients there are when nobody says: as many as the partition brings, else twenty."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from calling import headway

QUICK = ("--rounds=1", "--model=mlp_small")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{i % 7},hosp{i % 24},{i % 3}" for i in range(240)]
    Path("sites.csv").write_text("\n".join(["a,b,group,target", *rows, ""]))


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


def run(*words: str) -> str:
    """A run's notes."""
    end = headway("run", "fedavg", *QUICK, *words)
    assert end.code == 0, end.err
    return end.err


def test_natural_takes_every_group_and_twenty_when_twenty_are_asked_for() -> None:
    said = run("--data=sites.csv", "--partition=natural", "--out=all")
    assert read("all/config.json")["settings"]["clients"] == len(read("all/partition.json")["clients"]) == 24
    assert "left out" not in said
    assert "note: sites.csv: column 'target' is the label; sites.csv has no test part" in said
    said = run("--data=sites.csv", "--partition=natural", "--clients=20", "--out=some")
    assert read("some/config.json")["settings"]["clients"] == len(read("some/partition.json")["clients"]) == 20
    assert "note: natural: 20 of 24 groups are clients; the other 4 are left out" in said
    assert "groups" in read("some/partition.json")["notes"]["note"]


def test_the_number_is_the_same_request_whether_it_was_given_or_found() -> None:
    run("--data=sites.csv", "--partition=natural", "--out=all")
    summary = Path("all/summary.json").read_bytes()
    Path("all/summary.json").unlink()
    assert headway("resume", "all").code == 0
    run("--data=sites.csv", "--partition=natural", "--clients=24", "--out=again")
    again = read("again/config.json")["identity"]
    assert again == read("all/config.json")["identity"]
    assert json.loads(summary)["last"] == read("again/summary.json")["last"]


@pytest.mark.parametrize("text", ["p/partition.json", "p", "./p/"])
def test_a_saved_partition_needs_neither_its_clients_nor_its_file_name(text: str) -> None:
    assert headway("partition", "--clients=7", "--train-size=200", "--out=p").code == 0
    run("--train-size=200", f"--partition={text}", "--out=a")
    assert read("a/config.json")["settings"]["clients"] == len(read("a/partition.json")["clients"]) == 7
    assert read("a/partition.json")["hash"] == read("p/partition.json")["hash"]
    end = headway("run", "fedavg", *QUICK, "--train-size=200", f"--partition={text}", "--clients=20", "--out=b")
    assert end.code == 2
    assert "clients is 20 and partition file" in end.err
    assert "set clients=7 or leave it out" in end.err
    assert not Path("b").exists()


def test_dropped_clients_are_told() -> None:
    said = run("--train-size=300", "--partition=dir(0.001,empty=drop)", "--clients=100", "--out=a")
    empty = len(read("a/partition.json")["notes"]["empty"])
    assert empty > 0
    assert f"{empty} of 100 clients were empty and dropped" in said
    shown = headway("partition", "--train-size=300", "--partition=dir(0.001,empty=drop)", "--clients=100")
    assert f"note: {empty} of 100 clients were empty and dropped" in shown.out


def test_a_renamed_file_is_the_same_data_in_the_same_hands() -> None:
    run("--data=sites.csv", "--train-size=100", "--clients=5", "--out=a")
    Path("sites.csv").rename("hospitals.csv")
    run("--data=hospitals.csv", "--train-size=100", "--clients=5", "--out=b")
    for key in ("data_hash", "partition_hash"):
        assert read("a/config.json")["identity"][key] == read("b/config.json")["identity"][key]


def test_every_fact_of_a_partition_is_printed_under_a_name_of_its_own():
    words = ("partition", "--train-size=300", "--partition=dir(0.001,empty=drop)", "--clients=100")
    told, shown = headway(*words, "--json").json, headway(*words).out
    facts = re.findall(r"^(\w+): (.*)$", shown, re.MULTILINE)
    names = [name for name, _ in facts]
    assert len(set(names)) == len(names)
    assert dict(facts)["empty_clients"] == str(told["describe"]["empty"])
    assert dict(facts)["empty_client_ids"] == str(told["notes"]["empty"])
