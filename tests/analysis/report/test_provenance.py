"""Where a run comes from: the command that repeats it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from calling import SMALL, headway
from report_pages import Reader
from report_runs import write_run

from headway.analysis.report import provenance
from headway.analysis.report.gather import gather
from headway.analysis.report.page import page


def test_the_command_repeats_the_run_byte_for_byte(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        "--lr=0.025",
        "--partition=classes(4)",
        "--seed=3",
        "--lr-decay=0.5@1",
        "--weight-decay=1e-4",
        "--persist-momentum",
    )
    assert headway("run", "prox(mu=0.5)+fn", *SMALL, *words, "--out=a b").code == 0
    again_words = shlex.split(provenance.command(gather([Path("a b")]).runs[0]))
    assert again_words[:2] == ["headway", "run"]
    assert headway(*again_words[1:], "--quiet", "--out=c").code == 0
    for name in ("metrics.jsonl", "model.safetensors", "partition.json"):
        assert Path("a b", name).read_bytes() == Path("c", name).read_bytes()


def with_options(path, **options):
    run = write_run(path)
    config = json.loads((run / "config.json").read_text())
    config["options"] |= options
    (run / "config.json").write_text(json.dumps(config))
    return gather([run])


def test_the_command_says_how_the_run_was_carried_out(tmp_path):
    whole = with_options(
        tmp_path / "a", engine="ray", address="head:6379", layout="channels_last", watch=["norms", "drift"],
        track=["tensorboard", "mlflow"], threads=2,
    )  # fmt: skip
    words = provenance.command(whole.runs[0])
    assert words.endswith(
        "--threads 2 --engine ray --address head:6379 --tune --watch norms,drift --track tensorboard --track mlflow"
    )
    assert "the fastest layout of images was channels_last" in Reader(page(whole)).text
    plain = with_options(tmp_path / "b", layout="channels_first")
    assert provenance.command(plain.runs[0]) == "headway run fedavg --clients 3 --rounds 2"
    assert "layout of images was" not in Reader(page(plain)).text
    odd = with_options(tmp_path / "c", watch="norms", track=None, address=None, layout=3)
    assert provenance.command(odd.runs[0]).endswith("--rounds 2 --watch norms")


def test_objects_handed_over_in_python_are_told_from_names(tmp_path):
    a = gather([write_run(tmp_path / "a", data="clouds", model="torch.nn:Sequential")]).runs[0]
    assert provenance.made_from_objects(a) == ["data clouds", "model torch.nn:Sequential"]
    b = gather([write_run(tmp_path / "b", data="t/x.csv", model="net.py:Mine")]).runs[0]
    assert provenance.made_from_objects(b) == []


@pytest.mark.usefixtures("in_tmp")
def test_the_command_of_a_watched_run_writes_the_same_watch():
    assert headway("run", "fedavg", *SMALL, "--watch=norms,drift", "--out=a").code == 0
    words = shlex.split(provenance.command(gather([Path("a")]).runs[0]))
    assert headway(*words[1:], "--quiet", "--out=b").code == 0
    assert Path("a/watch.jsonl").read_bytes() == Path("b/watch.jsonl").read_bytes()
